"""Files of words with a tag each: the user's own in columns, and trees in brackets.

An example is {"text": words, "tags": tags}, with one space between two words and two tags: word i
of `text.split(" ")` has tag i of `tags.split(" ")`.
"""

from collections.abc import Iterable, Sequence

from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.files.text import TextLines, blocks
from transformer_jax.data.files.trees import read_trees
from transformer_jax.errors import UserError


def read_tagged_words(path: str) -> Corpus:
    """The sentences of a file of lines WORD<tab>TAG, with blank lines between sentences.

    Raises:
      UserError: the file cannot be read or has no sentence, or a line is of another form (the first
        one is named).
    """
    lines = TextLines(path)
    places = blocks(lines)
    if not len(places):
        raise UserError(f"{path} has no sentence: every line of it is blank")
    for start, stop in places:
        for i in range(start, stop):
            _check(lines, i)
    return Parsed(
        range(len(places)),
        lambda sentence: _example(lines[i].split("\t") for i in range(*places[sentence])),
    )


def read_tagged_trees(path: str) -> Corpus:
    """The words and part-of-speech tags of a file of trees in brackets; raises as `read_trees`."""
    return read_trees(path, lambda tree: _example(tree.leaves()))


def _check(lines: TextLines, i: int) -> None:
    columns = lines[i].split("\t")
    if len(columns) != 2:
        problem = f"{len(columns)} columns"
    elif not all(columns):
        problem = "no word" if not columns[0] else "no tag"
    elif any(" " in column for column in columns):
        problem = "a space within a word or tag"
    else:
        return
    raise UserError(f"{lines.path}, line {i + 1}: {problem}; write word<tab>tag, two columns")


def _example(tagged: Iterable[Sequence[str]]) -> Example:
    """The example of (word, tag), ..."""
    words, tags = zip(*tagged, strict=True)
    return {"text": " ".join(words), "tags": " ".join(tags)}

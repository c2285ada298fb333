# SPDX-License-Identifier: Apache-2.0
"""Tab-separated files of tagged words."""

from collections.abc import Iterable, Sequence

from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.files.lines import TextLines, paragraphs
from transformer_jax.errors import UserError


def read_tagged_words(path: str) -> Corpus:
    """Reads sentences from lines WORD<tab>TAG, with blank lines between sentences.

    Raises:
      UserError: the file cannot be read or has no sentence, or a line has another form; the first
        one is named.
    """
    lines = TextLines(path)
    sentences = paragraphs(lines)
    if not len(sentences):
        raise UserError(f"{path} has no sentence: all its lines are blank")
    for start, stop in sentences:
        for i in range(start, stop):
            problem = _problem_of(lines[i].split("\t"))
            if problem:
                raise UserError(f"{path}, line {i + 1}: {problem}; write word<tab>tag, two columns")
    return Parsed(
        range(len(sentences)),
        lambda index: tagged_example(lines[i].split("\t") for i in range(*sentences[index])),
    )


def tagged_example(pairs: Iterable[Sequence[str]]) -> Example:
    """Example {"text": words, "tags": tags} of (word, tag) pairs, separated by single spaces."""
    words, tags = zip(*pairs, strict=True)
    return {"text": " ".join(words), "tags": " ".join(tags)}


def _problem_of(columns: Sequence[str]) -> str | None:
    if len(columns) != 2:
        return f"{len(columns)} columns"
    if not all(columns):
        return "no tag" if columns[0] else "no word"
    return "a space within a word or tag" if " " in "".join(columns) else None

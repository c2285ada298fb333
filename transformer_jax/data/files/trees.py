"""Files of trees in brackets, one a line or spread over lines, as the Penn Treebank's .mrg files.

An example is {"source": words, "target": tree}: the words with one space between two, the tree in
brackets on one line.
"""

import functools
from collections.abc import Callable, Sequence

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.files.text import TextLines, open_files
from transformer_jax.errors import UserError
from transformer_jax.trees import (
    Tree,
    parse_tree,
    tree_line_spans,
    without_function_tags,
    without_traces,
)


def open_bracketed(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The corpora of a split of `bracketed_trees`: one for each file.

    Raises:
      UserError: no file is named, or one cannot be used.
    """
    clean = functools.partial(
        _clean, traces=config.remove_traces, function_tags=config.remove_function_tags
    )
    return open_files(config, split, lambda path: read_parses(path, clean))


def _clean(tree: Tree, traces: bool, function_tags: bool) -> Tree:
    """The tree without what a parser does not predict; ValueError where nothing is left."""
    if traces:
        kept = without_traces(tree)
        if kept is None:
            raise ValueError("the tree is over no words, but for traces")
        tree = kept
    return without_function_tags(tree) if function_tags else tree


def read_parses(path: str, clean: Callable[[Tree], Tree] = lambda tree: tree) -> Corpus:
    """The sentences of a file, each with its tree, cleaned; as `read_trees`, which raises the
    same."""

    def example(tree: Tree) -> Example:
        cleaned = clean(tree)
        return {"source": " ".join(cleaned.words()), "target": str(cleaned)}

    return read_trees(path, example)


def read_trees(path: str, to_example: Callable[[Tree], Example]) -> Corpus:
    """What `to_example` makes of each tree of a file. Blank lines are skipped.

    Raises:
      UserError: the file cannot be read or has no tree, or what stands in a line is not one tree or
        none that `to_example` takes (the first such line is named, a tree by its first).
    """
    lines = TextLines(path)
    places = list(tree_line_spans(lines))
    if not places:
        raise UserError(f"{path} has no tree: every line of it is blank")

    def read(place: tuple[int, int]) -> Example:
        return to_example(parse_tree("\n".join(lines[slice(*place)])))

    for place in places:
        try:
            read(place)
        except ValueError as error:
            raise UserError(
                f"{path}, line {place[0] + 1}: {error}; write trees in brackets, as "
                "(TOP (NN word)), each from a new line"
            ) from error
    return Parsed(places, read)

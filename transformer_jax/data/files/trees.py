# SPDX-License-Identifier: Apache-2.0
"""Files of bracketed trees, one per line or over several lines as in the Penn Treebank's .mrg.

Examples are sentences with their trees (for parsing), or with their part-of-speech tags.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example
from transformer_jax.data.files.lines import TextLines, open_files
from transformer_jax.data.files.rows import Rows, select_rows
from transformer_jax.data.files.tsv import tagged_example
from transformer_jax.errors import UserError
from transformer_jax.trees import (
    Tree,
    parse_tree,
    tree_line_spans,
    without_function_tags,
    without_traces,
)


def open_bracketed(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `bracketed_trees`, one corpus per file.

    Raises:
      UserError: no file is configured, or one cannot be used.
    """
    clean = functools.partial(
        _clean, traces=config.remove_traces, function_tags=config.remove_function_tags
    )
    return open_files(config, split, lambda path: read_parses(path, clean))


def _clean(tree: Tree, traces: bool, function_tags: bool) -> Tree:
    """Removes traces and function tags; ValueError if the tree has only traces."""
    cleaned = without_traces(tree) if traces else tree
    if cleaned is None:
        raise ValueError("the tree has no words except traces")
    return without_function_tags(cleaned) if function_tags else cleaned


def read_parses(path: str, clean: Callable[[Tree], Tree] = lambda tree: tree) -> Corpus:
    """Reads sentences and their trees, after `clean` has changed each tree.

    An example is {"source": words, separated by spaces, "target": the tree on one line}. Raises as
    `read_trees`.
    """

    def to_example(tree: Tree) -> Example:
        cleaned = clean(tree)
        return {"source": " ".join(cleaned.words()), "target": str(cleaned)}

    return read_trees(path, to_example)


def read_tagged_trees(path: str) -> Corpus:
    """Reads the words and part-of-speech tags of trees, {"text": words, "tags": tags}.

    Raises as `read_trees`.
    """
    return read_trees(path, lambda tree: tagged_example(tree.leaves()))


def read_trees(path: str, to_example: Callable[[Tree], Example]) -> Corpus:
    """Reads the trees of a file, skips blank lines, and converts each tree with `to_example`.

    Raises:
      UserError: the file cannot be read, has no tree, or has an invalid one, also for
        `to_example`; the first line of the first invalid tree is named.
    """
    lines = TextLines(path)
    ranges = list(tree_line_spans(lines))
    if not ranges:
        raise UserError(f"{path} has no tree: all its lines are blank")

    def read(lines_of_tree: tuple[int, int]) -> Example:
        try:
            return to_example(parse_tree("\n".join(lines[slice(*lines_of_tree)])))
        except ValueError as error:
            raise ValueError(
                f"{error}; write trees in brackets, such as (TOP (NN word)), each on a new line"
            ) from error

    numbers = np.array([start + 1 for start, _ in ranges])
    return select_rows(Rows(ranges, path, "line", numbers), read, "all")

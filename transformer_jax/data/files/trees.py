# SPDX-License-Identifier: Apache-2.0
"""Files of annotated sentences: bracketed trees, and tab-separated lines of tagged words.

Trees are one per line or over several lines, as in the Penn Treebank's .mrg. Examples are sentences
with their trees (for parsing), or with their part-of-speech tags.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.files.lines import TextLines, open_files, paragraphs
from transformer_jax.data.files.rows import Rows, select_rows
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

    def read(path: str) -> Corpus:
        return read_parses(path, config.remove_traces, config.remove_function_tags)

    return open_files(config, split, read)


def open_tagged_words(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `tagged_words`, one corpus per file; raises as `read_tagged_words`."""
    return open_files(config, split, read_tagged_words)


def read_parses(
    path: str, remove_traces: bool = False, remove_function_tags: bool = False
) -> Corpus:
    """Reads sentences and their trees, {"source": words, separated by spaces, "target": the tree on
    one line}. Raises as `_read_trees`, also for a tree that has only traces to remove."""

    def to_example(tree: Tree) -> Example:
        cleaned = without_traces(tree) if remove_traces else tree
        if cleaned is None:
            raise ValueError("the tree has no words except traces")
        if remove_function_tags:
            cleaned = without_function_tags(cleaned)
        return {"source": " ".join(cleaned.words()), "target": str(cleaned)}

    return _read_trees(path, to_example)


def read_tagged_trees(path: str) -> Corpus:
    """Reads the words and part-of-speech tags of trees, {"text": words, "tags": tags}.

    Raises as `_read_trees`.
    """
    return _read_trees(path, lambda tree: _tagged_example(tree.leaves()))


def _read_trees(path: str, to_example: Callable[[Tree], Example]) -> Corpus:
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
    spans = sentences.tolist()
    return Parsed(spans, lambda span: _tagged_example(lines[i].split("\t") for i in range(*span)))


def _problem_of(columns: Sequence[str]) -> str | None:
    if len(columns) != 2:
        return f"{len(columns)} columns"
    if not all(columns):
        return "no tag" if columns[0] else "no word"
    return "a space within a word or tag" if " " in "".join(columns) else None


def _tagged_example(pairs: Iterable[Sequence[str]]) -> Example:
    """Example {"text": words, "tags": tags} of (word, tag) pairs, separated by single spaces."""
    words, tags = zip(*pairs, strict=True)
    return {"text": " ".join(words), "tags": " ".join(tags)}

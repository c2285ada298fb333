"""Constituency trees: as brackets, without what a parser does not predict, and as tokens."""

from transformer_jax.trees.tree import (
    CLOSE,
    OPEN,
    READ,
    Growing,
    Tree,
    from_tokens,
    joined,
    parse_tree,
    split_words,
    to_tokens,
    tree_lines,
    with_lookahead,
    without_function_tags,
    without_lookahead,
    without_traces,
)

__all__ = [
    "CLOSE",
    "OPEN",
    "READ",
    "Growing",
    "Tree",
    "from_tokens",
    "joined",
    "parse_tree",
    "split_words",
    "to_tokens",
    "tree_lines",
    "with_lookahead",
    "without_function_tags",
    "without_lookahead",
    "without_traces",
]

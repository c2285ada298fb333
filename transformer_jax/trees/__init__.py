"""Constituency trees: as brackets, without what a parser does not predict, and as tokens."""

from transformer_jax.trees.brackets import parse_tree, split_words, tree_lines
from transformer_jax.trees.cleaning import without_function_tags, without_traces
from transformer_jax.trees.linear import (
    CLOSE,
    OPEN,
    READ,
    from_tokens,
    to_tokens,
    with_lookahead,
    without_lookahead,
)
from transformer_jax.trees.tree import Growing, Tree, joined

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

"""Constituency trees: as brackets, without what a parser does not predict, and as tokens."""

from transformer_jax.trees.brackets import parse_tree, split_words, tree_lines
from transformer_jax.trees.cleaning import without_function_tags, without_traces
from transformer_jax.trees.linear import CLOSE, OPEN, from_tokens, to_tokens
from transformer_jax.trees.tree import Growing, Tree, joined

__all__ = [
    "CLOSE",
    "OPEN",
    "Growing",
    "Tree",
    "from_tokens",
    "joined",
    "parse_tree",
    "split_words",
    "to_tokens",
    "tree_lines",
    "without_function_tags",
    "without_traces",
]

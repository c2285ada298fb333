"""Searches for a model's outputs. They know no model: `interface` is the seam between the two."""

from transformer_jax.decoding.beam_search import LENGTH_PENALTIES, BeamSearch, length_penalty
from transformer_jax.decoding.beam_tree import BeamTree, Node, beam_tree
from transformer_jax.decoding.constraints import Constraint, constrained, masked_logits
from transformer_jax.decoding.interface import (
    DecodeStep,
    Hypotheses,
    Memory,
    Prefill,
    Reorderable,
    Search,
    Start,
    State,
    truncate_at_eos,
)
from transformer_jax.decoding.sampling import (
    Sampler,
    Samples,
    StepwiseSearch,
    penalized_logits,
    truncated_logits,
)

__all__ = [
    # The seam: what a model offers, what a search starts from, does and returns.
    "Prefill",
    "DecodeStep",
    "Memory",
    "State",
    "Reorderable",
    "Start",
    "Search",
    "StepwiseSearch",
    "Hypotheses",
    "truncate_at_eos",
    "Samples",
    # What a search may write.
    "Constraint",
    "constrained",
    "masked_logits",
    # Searches.
    "BeamSearch",
    "Sampler",
    "LENGTH_PENALTIES",
    "length_penalty",
    "penalized_logits",
    "truncated_logits",
    # A beam search, step by step.
    "BeamTree",
    "Node",
    "beam_tree",
]

"""Searches for a model's outputs. They know no model: `interface` is the seam between the two."""

from transformer_jax.decoding.beam_search import beam_search, length_penalty
from transformer_jax.decoding.interface import (
    DecodeStep,
    Hypotheses,
    Memory,
    Prefill,
    State,
)
from transformer_jax.decoding.sampling import (
    Sampler,
    Samples,
    penalized_logits,
    sample,
    truncated_logits,
)

__all__ = [
    # The seam: what a model offers, and what a search returns.
    "Prefill",
    "Sampler",
    "Samples",
    "DecodeStep",
    "Memory",
    "State",
    "Hypotheses",
    # Searches.
    "beam_search",
    "length_penalty",
    "penalized_logits",
    "sample",
    "truncated_logits",
]

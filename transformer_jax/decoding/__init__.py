# SPDX-License-Identifier: Apache-2.0
"""Searches for the outputs of a model: beam search, sampling, constraints.

A search knows no model; `interface` defines what the two exchange.
"""

from transformer_jax.decoding.beam_search import LENGTH_PENALTIES, BeamSearch, length_penalty
from transformer_jax.decoding.beam_tree import BeamTree, Node, beam_tree
from transformer_jax.decoding.constraints import Constraint, constrained, masked_logits
from transformer_jax.decoding.interface import (
    DecodeStep,
    Hypotheses,
    Memory,
    Prefill,
    RefillableSearch,
    Reorderable,
    Rewindable,
    Search,
    Start,
    State,
    can_rewind,
    is_refillable,
    replace_sentences,
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
    # Interface between models and searches.
    "Prefill",
    "DecodeStep",
    "Memory",
    "State",
    "Reorderable",
    "Rewindable",
    "can_rewind",
    "Start",
    "Search",
    "StepwiseSearch",
    "RefillableSearch",
    "is_refillable",
    "replace_sentences",
    "Hypotheses",
    "truncate_at_eos",
    "Samples",
    # Constraints.
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
    # Record of a beam search.
    "BeamTree",
    "Node",
    "beam_tree",
]

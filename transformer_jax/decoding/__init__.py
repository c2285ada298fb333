# SPDX-License-Identifier: Apache-2.0
"""Searches for the outputs of a model: beam search, sampling, constraints.

A search knows no model; `interface` defines what the two exchange.
"""

from transformer_jax.decoding.beam_search import LENGTH_PENALTIES, BeamSearch, length_penalty
from transformer_jax.decoding.constraints import Constraint, constrained, masked_logits
from transformer_jax.decoding.interface import Hypotheses, Search, Start, truncate_at_eos
from transformer_jax.decoding.sampling import Sampler, truncated_logits

# SPDX-License-Identifier: Apache-2.0
"""The oracles of one device by name."""

from collections.abc import Callable, Mapping
from functools import partial

from transformer_jax.lab.verification import forward_oracles, stored_oracles, training_oracles
from transformer_jax.lab.verification.outcomes import Comparison
from transformer_jax.lab.verification.subject import Subject

Oracle = Callable[[Subject], Comparison]
"""Compares two computations that must give the same; raises DoesNotApplyError or UserError where
they have no meaning."""

ORACLES: Mapping[str, Oracle] = {
    "packed = padded": forward_oracles.packed,
    "cached = full": forward_oracles.cached,
    "causal": forward_oracles.causal,
    "bfloat16 near float32": forward_oracles.bfloat16,
    "accumulated = one batch": training_oracles.accumulated,
    "scanned = unrolled": training_oracles.scanned,
    "remat full = none": partial(training_oracles.rematerialized, remat="full"),
    "remat dots = none": partial(training_oracles.rematerialized, remat="dots"),
    "built again = the same": training_oracles.repeated,
    "resumed = uninterrupted": training_oracles.resumed,
    "seeds together = apart": training_oracles.seeds,
    "exported = imported": stored_oracles.exported,
    "data read again = the same": stored_oracles.data,
}

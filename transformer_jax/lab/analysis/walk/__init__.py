# SPDX-License-Identifier: Apache-2.0
"""One example through a trained model, step by step, with the model's own numbers."""

from transformer_jax.lab.analysis.walk.step import Axis, Walk, WalkStep
from transformer_jax.lab.analysis.walk.walking import walk

__all__ = ["Axis", "Walk", "WalkStep", "walk"]

"""One example through a trained model, step by step, with the model's own numbers."""

from transformer_jax.analysis.walk.step import Axis, Step, Walk
from transformer_jax.analysis.walk.walking import walk

__all__ = ["Axis", "Step", "Walk", "walk"]

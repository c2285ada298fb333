# SPDX-License-Identifier: Apache-2.0
"""Pictures for papers and notebooks, all in one style (`style`). Each function returns a figure."""

from transformer_jax.pictures.curves import Records, draw_curves, draw_recipe
from transformer_jax.pictures.heads import draw_heads
from transformer_jax.pictures.style import picture_format, save_figure
from transformer_jax.pictures.sweep import draw_sweep

__all__ = [
    "Records",
    "draw_curves",
    "draw_heads",
    "draw_recipe",
    "draw_sweep",
    "picture_format",
    "save_figure",
]

# SPDX-License-Identifier: Apache-2.0
"""Pictures for papers and notebooks, all in one style (`style`). Each function returns a figure."""

from transformer_jax.lab.pictures.curves import Records, draw_curves, draw_profiles, draw_recipe
from transformer_jax.lab.pictures.errors import (
    draw_calibration,
    draw_confusion,
    draw_rates,
    draw_worst,
)
from transformer_jax.lab.pictures.example import draw_heads, draw_tree
from transformer_jax.lab.pictures.style import picture_format, save_figure
from transformer_jax.lab.pictures.sweep import draw_differences, draw_sweep, draw_sweep_curves

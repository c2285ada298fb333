# SPDX-License-Identifier: Apache-2.0
"""A grid of patches equals its patches one by one."""

import dataclasses
from functools import partial

import numpy as np
from scipy.special import log_softmax

from tests.lab.analysis.drawn import draw
from tests.refusals import assert_refused
from transformer_jax.lab.analysis import patch_grid as grid
from transformer_jax.models.patches import patched_model


def test_a_grid_equals_single_patches(random_params, monkeypatch):
    monkeypatch.setattr(grid, "CELLS", 6)  # 10 cells in two batches
    drawn = draw(random_params, "encoder_decoder")
    target = np.array([5, 3, 7, 2])
    reading = dataclasses.replace(drawn.reading, outputs=target.tolist())
    patch = partial(grid.patch_grid, dataclasses.replace(drawn, reading=reading), "", None)
    values = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)

    def log_prob(logits):
        return log_softmax(logits, axis=-1)[range(4), target].sum()

    def largest(logits):
        return logits[-1].max()

    grids = {
        "encoder.layer_*": (patch("encoder.layer_*", values), values, log_prob),
        "decoder.layer_*": (patch("decoder.layer_*", 0, largest), 0, largest),
    }
    for pattern, (measures, change, measure) in grids.items():
        assert measures.shape == (2, 5 if "encoder" in pattern else 4)
        for layer, position in ((0, 0), (1, 3)):  # the second batch begins in layer 1
            value = change if np.ndim(change) == 0 else change[layer, position]
            patches = {f"{pattern.replace('*', str(layer))}[{position}]": value}
            model = patched_model(drawn.model, patches, drawn.hook_points)
            expected = measure(drawn.logits(model))
            np.testing.assert_allclose(measures[layer, position], expected, rtol=1e-4)
    gpt = draw(random_params, "decoder_only", positions="sinusoidal")
    measures = grid.patch_grid(gpt, "", None, "input.positions", 0, largest)
    model = patched_model(gpt.model, {"input.positions[2]": 0}, gpt.hook_points)
    assert measures.shape == (1, 4)
    np.testing.assert_allclose(measures[0, 2], largest(gpt.logits(model)), rtol=1e-4)
    by_heads = partial(patch, "encoder.**.weights", 0)
    assert_refused(
        {
            "no hook point encoder.layr_*": partial(patch, "encoder.layr_*", 0),
            "weights has no position first, but head, query": by_heads,
            "shape (2, 4, 16) does not fit": partial(patch, "encoder.layer_*", values[:, :4]),
            "*.layer_0 has points of stacks of 4 and 5 tokens": partial(patch, "*.layer_0", 0),
            "has no target; give a measure": partial(
                grid.patch_grid, drawn, "", None, "encoder.layer_*", 0
            ),
        }
    )

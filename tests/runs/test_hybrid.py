# SPDX-License-Identifier: Apache-2.0
"""A run of a stack with gated linear and full attention: what inspection shows of it."""

import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.analysis.pages.attention_page import attention_page

LAYERS = "attention_layer=gated_delta gated_delta.chunk_size=8 | default"


@pytest.fixture(scope="module")
def run(tiny_config, tiny_language_model, tmp_path_factory):
    changes = {"model.positions": "rotary", "model.layers": LAYERS, "model.num_layers": 2}
    changes |= {"train.num_steps": 2, "eval.every_steps": 2, "checkpoint.every_steps": 2}
    config = tiny_config(tiny_language_model | changes)
    return tj.train(config, tmp_path_factory.mktemp("hybrid") / "run")


def test_only_layers_with_weights_are_shown(run):
    found = run.attention("The dog", also=["queries"])
    assert found.layers("decoder") == [1] and len(found.weights("decoder")) == 1
    np.testing.assert_allclose(found.weights("decoder").sum(-1), 1, rtol=1e-5)
    path = "decoder.layer_{}.self_attention.queries"
    np.testing.assert_array_equal(found.of("decoder", "queries")[0], found.values[path.format(1)])
    assert found.values[path.format(0)].shape == found.values[path.format(1)].shape
    assert '"layers":[1]' in attention_page(found, "The dog").replace(" ", "")


def test_gates_are_hook_points(run):
    closed = run.patched({"decoder.layer_0.self_attention.strength": 0})
    silent = run.patched({"decoder.layer_0.self_attention.heads": 0})
    streams = [each.hidden("The dog").streams["decoder"] for each in (closed, silent, run)]
    np.testing.assert_array_equal(streams[0], streams[1])
    assert np.abs(streams[0] - streams[2]).max() > 1e-3

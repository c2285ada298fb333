# SPDX-License-Identifier: Apache-2.0
"""Inspection of a run of an unusual stack, with gated linear attention. (Runs with experts:
parallel/test_engines.py, docs/test_recipes.py.)"""

import dataclasses

import numpy as np
import pytest

from transformer_jax.lab.analysis.attention_page import attention_page
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings

LAYERS = "attention_layer=gated_delta gated_delta.chunk_size=8 | default | attention_layer=sinks"


@pytest.fixture(scope="module")
def run(tiny_config, tiny_language_model, language_model, random_params):
    changes = {"model.positions": "rotary", "model.layers": LAYERS, "model.num_layers": 3}
    settings = read_settings(tiny_config(tiny_language_model | changes))
    tokenizers = language_model.tokenizer
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    params = random_params(task)
    return dataclasses.replace(language_model, settings=settings, task=task, params=params)


@pytest.fixture(scope="module")
def found(run):
    return run.attention("The dog", also=["queries", "stream"])


def test_only_layers_with_weights_are_shown(found):
    assert found.layers("decoder") == [1, 2] and len(found.weights("decoder")) == 2
    np.testing.assert_allclose(found.weights("decoder")[0].sum(-1), 1, rtol=1e-5)
    path = "decoder.layer_{}.self_attention.queries"
    np.testing.assert_array_equal(found.of("decoder", "queries")[0], found.values[path.format(1)])
    assert found.values[path.format(0)].shape == found.values[path.format(1)].shape
    assert '"layers":[1,2]' in attention_page(found, "The dog").replace(" ", "")


def test_gates_are_hook_points(run, found):
    closed = run.patched({"decoder.layer_0.self_attention.strength": 0})
    silent = run.patched({"decoder.layer_0.self_attention.heads": 0})
    streams = [each.hidden("The dog").streams["decoder"] for each in (closed, silent)]
    np.testing.assert_array_equal(*streams)
    assert np.abs(streams[0][1] - found.values["decoder.layer_0"]).max() > 1e-3

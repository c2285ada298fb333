# SPDX-License-Identifier: Apache-2.0
"""A run with a recurrent model: trained, loaded, used, inspected, and what it refuses."""

import dataclasses

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART
from tests.lab.analysis.drawn import Drawn
from tests.refusals import assert_refused
from transformer_jax.lab.analysis.activations import attention

OF_TRANSFORMERS = ("model.d_ff", "model.num_heads")
LINE = "the old man sees a dog"


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    """A run of four steps of configs/multi30k_en_de_rnn.py, shrunk."""
    shrunk = {name: value for name, value in tiny.items() if name not in OF_TRANSFORMERS}
    changes = {
        "model.encoder_direction": "forward",
        "model.dropout_rate": 0.0,
        "train.num_steps": 4,
        "optimizer.decay_steps": 1000,
        "eval.every_steps": 4,
        "decode.beam_size": 1,
    }
    config = tj.config(QUICKSTART.with_name("multi30k_en_de_rnn.py"), shrunk | changes)
    return tj.train(config, tmp_path_factory.mktemp("recurrent") / "run")


def test_it_is_loaded_with_its_config_and_parameters(run):
    loaded = tj.load(run.workdir)
    assert loaded.config == run.config
    jax.tree.map(np.testing.assert_array_equal, loaded.params, run.params)


def test_its_attention_is_one_head_of_one_layer(run):
    found = run.attention(LINE, "der alte mann sieht einen hund")
    assert found.kinds == ["cross"]
    shape = (1, 1, len(found.tokens["decoder"]), len(found.tokens["encoder"]))
    assert found.weights("cross").shape == shape
    np.testing.assert_allclose(found.weights("cross").sum(-1), 1, rtol=1e-5)
    assert "cross-attention" in found._repr_html_()


def test_a_layer_can_be_patched_and_weights_cannot(run):
    assert list(run.hook_points) == ["encoder.input", "encoder.layer_0", "encoder"]
    pair = ([LINE], ["der hund"])
    assert run.patched({"encoder.layer_0": 0}).score(*pair) != run.score(*pair)


def test_what_it_does_not_have_is_refused(run, random_params):
    config = dataclasses.replace(run.model.config, attention_score="none")
    model = type(run.model)(config)
    reading = run.model_inputs(LINE, "hund")
    params = random_params(model, *reading.inputs)["params"]
    without = Drawn(model, params, reading, run.tokenizer.outputs)
    weights = {"decoder.cross_attention.weights": 0}
    assert_refused(
        {
            "no hook point decoder.cross_attention.weights that": lambda: run.patched(weights),
            "hidden: this model's decoder has no res": lambda: run.hidden(LINE, "hund"),
            "walk: RecurrentEncoderDecoder has no layers": lambda: run.walk(LINE, "hund"),
            "this run's model has no heads": run.head_importance,
            "model has no layer with attention we": lambda: attention(without, ""),
        }
    )

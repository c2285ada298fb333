# SPDX-License-Identifier: Apache-2.0
"""The four WMT 2014 configs against the paper: table 3, sections 5.1 to 5.4 and 6.1."""

import jax
import pytest

import transformer_jax as tj
from tests.conftest import ROOT
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings

CONFIGS = ROOT / "configs"
PAPER = {
    # name: N, d_model, d_ff, h, d_k, P_drop, steps, pieces, averaged
    "wmt14_en_de_base": (6, 512, 2048, 8, 64, 0.1, 100_000, 37_000, 5),
    "wmt14_en_de_big": (6, 1024, 4096, 16, 64, 0.3, 300_000, 37_000, 20),
    "wmt14_en_fr_base": (6, 512, 2048, 8, 64, 0.1, 100_000, 32_000, 5),
    "wmt14_en_fr_big": (6, 1024, 4096, 16, 64, 0.1, 300_000, 32_000, 20),
}


@pytest.mark.parametrize("name", PAPER)
def test_all_values_are_those_of_the_paper(name):
    settings = read_settings(tj.config(CONFIGS / f"{name}.py"))
    layers, d_model, d_ff, heads, d_k, dropout, steps, pieces, averaged = PAPER[name]
    model, optimizer, train = settings.model, settings.optimizer, settings.train
    assert model.num_encoder_layers == model.num_decoder_layers == layers
    assert (model.d_model, model.d_ff, model.num_heads) == (d_model, d_ff, heads)
    assert model.d_k == model.d_v == d_k
    assert model.dropout_rate == dropout
    assert (model.norm_placement, model.activation) == ("post", "relu")
    assert (model.positions, model.tie_embeddings) == ("sinusoidal", "all")
    assert train.num_steps == steps and train.label_smoothing == 0.1
    assert abs(train.tokens_per_batch - 25_000) < 500
    assert train.rows(settings.data.max_source_length, shards=8) == 96  # eight devices share them
    assert settings.tokenizer.vocab_size == pieces and settings.tokenizer.joint
    assert (optimizer.name, optimizer.schedule) == ("adam", "transformer")
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (1.0, 4000)
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.98, 1e-9)
    assert settings.checkpoint.keep_params == averaged
    decode = settings.decode
    assert (decode.beam_size, decode.alpha, decode.max_extra_length) == (4, 0.6, 50)
    data = settings.data
    assert (data.name, data.tfds_name) == ("tfds", "wmt14_translate")
    assert (data.source_language, data.target_language) == ("en", name.split("_")[2])


@pytest.mark.parametrize(("name", "millions"), [("base", 65), ("big", 213)])
def test_the_number_of_parameters_is_that_of_the_paper(name, millions):
    settings = read_settings(tj.config(CONFIGS / f"wmt14_en_de_{name}.py"))
    layers, d_model, d_ff, *_, pieces, _ = PAPER[f"wmt14_en_de_{name}"]
    task = build.build_task(settings, {"source": pieces, "target": pieces}, tokenizers=None)
    leaves = jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)))
    attention, feed_forward = 4 * d_model**2, 2 * d_model * d_ff + d_ff + d_model
    norm = 2 * d_model
    layer_pair = 3 * attention + 2 * feed_forward + 5 * norm
    count = sum(leaf.size for leaf in leaves)
    assert count == pieces * d_model + layers * layer_pair
    # The paper rounds, and gives the size of its vocabulary as "about".
    assert abs(count / 1e6 - millions) < 0.04 * millions

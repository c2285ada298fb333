# SPDX-License-Identifier: Apache-2.0
"""Attention layers that compute weights in another way: sinks, additive scores. In a model, packed
and cached, they are in `models/test_parts`."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from tests.compiled import apply
from tests.models.texts import PADDED
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn import fused_attention
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.attention_variants import AdditiveAttention, SinkAttention, SinkOptions
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.parameters import parameter_at

RNG = np.random.default_rng(0)
SIZES = dict(d_model=8, d_ff=16, num_heads=4, num_key_value_heads=2, num_layers=2, vocab_size=11)
CONFIG = TransformerConfig(**SIZES, architecture="decoder_only", dtype="float32")


@pytest.mark.parametrize("learned", [True, False])
def test_a_sink_takes_its_share_of_the_weights(random_params, learned):
    layer = SinkAttention(TransformerConfig(**SIZES, options=(SinkOptions(learned),)))
    logits = RNG.normal(size=(1, 4, 2, 3)).astype(np.float32)
    mask = np.array([[[[1, 0, 1], [0, 0, 0]]]], bool)
    drawn = random_params(layer, logits, mask, method="normalize")
    assert ("params" in drawn and "sink" in drawn["params"]) == learned
    found = apply(layer, drawn, logits, mask, method="normalize")
    for h, i, j in np.ndindex(4, 2, 3):
        sink = float(drawn["params"]["sink"][h]) if learned else 0.0
        seen = [math.exp(logits[0, h, i, k]) for k in range(3) if mask[0, 0, i, k]]
        own = math.exp(logits[0, h, i, j]) * mask[0, 0, i, j]
        assert found[0, h, i, j] == pytest.approx(own / (math.exp(sink) + sum(seen)), rel=1e-5)


def test_an_additive_score_equals_its_formula(random_params):
    layer = AdditiveAttention(CONFIG)
    query, key = (RNG.normal(size=(1, 3, heads, 2)).astype(np.float32) for heads in (4, 2))
    drawn = random_params(layer, query, key, method="score")
    energy = drawn["params"]["energy"]
    found = apply(layer, drawn, query, key, method="score")
    for h, i, j in np.ndindex(4, 3, 3):
        expected = energy[h] @ np.tanh(query[0, i, h] + key[0, j, h // 2])
        np.testing.assert_allclose(found[0, h, i, j], expected, rtol=1e-5, atol=1e-6)


class Halved(MultiHeadAttention):
    def weigh(self, weights, deterministic):
        return weights / 2


@pytest.mark.parametrize("layer", [SinkAttention, AdditiveAttention, Halved])
def test_no_fused_kernel_computes_them(layer, with_entries, monkeypatch):
    with_entries(ATTENTION_LAYERS, {"own": layer})
    model = DecoderOnly(dataclasses.replace(CONFIG, attention_layer="own", positions="t5"))
    asked = []
    plain = fused_attention.KernelChoice("plain")
    monkeypatch.setattr(
        fused_attention, "choose_kernel", lambda *arguments: asked.append(arguments[2]) or plain
    )
    jax.eval_shape(lambda: model.init(jax.random.key(0), *PADDED))
    assert [requirements.own_steps for requirements in asked] == [True] * 2


def test_their_parameters_are_in_the_table():
    assert parameter_at("decoder/layer_0/self_attention/sink").axes == ("heads",)
    assert parameter_at("decoder/layer_0/self_attention/energy").axes == ("heads", "size")
    assert parameter_at("decoder/cross_attention/energy").axes == ("features",)

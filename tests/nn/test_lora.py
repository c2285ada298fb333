# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: initially zero, merged equals unmerged, scale and dropout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply, run
from tests.models.texts import small_config
from transformer_jax.models import apply_model
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.linear import Linear, adapted_product
from transformer_jax.nn.lora import AdaptedMatrix, LowRankAdapter, merge_adapters, with_adapters
from transformer_jax.training.config import LoraConfig

CONFIG = small_config(depth=2, vocab_size=20)
ROW = (np.arange(8)[None] % 20, np.arange(8)[None], np.ones((1, 8), np.int32))
ALL = LoraConfig(rank=3, targets="kernel$")


@pytest.fixture(scope="module")
def model():
    return DecoderOnly(CONFIG)


@pytest.fixture(scope="module")
def params(model):
    return run(model.init, jax.random.key(0), *ROW)["params"]


def drawn(adapters):
    rng = np.random.default_rng(0)
    return {
        name: dataclasses.replace(one, up=jnp.array(rng.normal(0, 0.1, one.up.shape), jnp.float32))
        for name, one in adapters.items()
    }


def test_initial_adapters_are_those_of_peft():
    """kaiming_uniform_(A, a=sqrt(5)): uniform in +-1 / sqrt(inputs), of variance 1 / (3 inputs)."""
    params = {"output": {"kernel": jax.ShapeDtypeStruct((40, 5, 7), jnp.float32)}}
    config = LoraConfig(rank=100, targets="kernel$")
    adapter = config.init_adapters(jax.random.key(0), params)["output/kernel"]
    assert adapter.down.shape == (200, 100) and not np.asarray(adapter.up).any()
    assert np.abs(adapter.down).max() == pytest.approx(200**-0.5, rel=1e-3)
    assert np.var(adapter.down) == pytest.approx(1 / 600, rel=0.02)


def test_merged_equals_unmerged(model, params):
    beside = with_adapters(params, drawn(run(ALL.init_adapters, jax.random.key(1), params)))
    merged = run(merge_adapters, beside)
    apart, together, plain = (
        run(apply_model, model, one, *ROW) for one in (beside, merged, params)
    )
    np.testing.assert_allclose(apart, together, atol=1e-5)
    assert np.abs(apart - plain).max() > 0.01
    assert jax.tree.structure(merged) == jax.tree.structure(params)


@pytest.mark.parametrize(("inputs", "outputs"), [((6,), (2, 4)), ((2, 3), (5,))])
def test_an_adapted_map_equals_the_papers_formula(inputs, outputs):
    """h = W x + (alpha / r) B A x (section 4.1), with the axes of heads flattened."""
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(*inputs, *outputs)).astype(np.float32)
    down, up = rng.normal(size=(6, 2)), rng.normal(size=(2, int(np.prod(outputs))))
    low = LowRankAdapter(jnp.array(down, jnp.float32), jnp.array(up, jnp.float32), 8 / 2, 0.0)
    module = Linear(inputs, outputs, use_bias=False, config=CONFIG)
    x = rng.normal(size=(3, *inputs)).astype(np.float32)
    found = apply(module, {"params": {"kernel": AdaptedMatrix(jnp.array(kernel), low)}}, x)
    flat = x.reshape(3, 6)
    expected = flat @ kernel.reshape(6, -1) + 4 * (flat @ down @ up)
    np.testing.assert_allclose(found.reshape(3, -1), expected, rtol=1e-4, atol=1e-4)


def test_an_adapter_leaves_an_exact_product_exact():
    """As of the gates of gated linear attention, where products are in bfloat16."""
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    module = Linear((64,), (32,), use_bias=False, config=config, exact=True)
    x, kernel = np.random.default_rng(0).normal(size=(2, 64, 64)).astype(np.float32)
    low = LowRankAdapter(jnp.ones((64, 2)), jnp.zeros((2, 32)), 1.0, 0.0)
    adapted = apply(module, {"params": {"kernel": AdaptedMatrix(kernel[:, :32], low)}}, x)
    np.testing.assert_array_equal(adapted, apply(module, {"params": {"kernel": kernel[:, :32]}}, x))


def test_scales():
    assert LoraConfig(rank=4, alpha=8.0).scale == 2
    assert LoraConfig(rank=4, alpha=8.0, rank_stabilized=True).scale == 4


def test_dropout_acts_only_on_the_inputs_of_adapters(model, params):
    dropping = dataclasses.replace(ALL, dropout_rate=0.5)
    fresh = run(dropping.init_adapters, jax.random.key(1), params)
    assert len(fresh) == 2 * 6  # query, key, value, output, inner, outer
    plain = run(apply_model, model, params, *ROW)
    key = jax.random.key(2)
    # B is 0, so that dropout changes nothing. (The config has no other dropout.)
    no_dropout = DecoderOnly(dataclasses.replace(CONFIG, dropout_rate=0.0))
    logits = jax.jit(lambda params, rng: apply_model(no_dropout, params, *ROW, rng=rng))
    found = logits(with_adapters(params, fresh), key)
    np.testing.assert_array_equal(found, plain)
    beside = with_adapters(params, drawn(fresh))
    one, same, other = (np.asarray(logits(beside, rng)) for rng in (key, key, jax.random.key(3)))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 0.001


def test_dropout_keeps_the_mean():
    low = AdaptedMatrix(jnp.zeros((4, 4)), LowRankAdapter(jnp.eye(4), jnp.eye(4), 1.0, 0.25))
    x = jnp.ones((20_000, 4))
    found = adapted_product(x, low, jnp.float32, jax.random.key(0))
    assert set(np.unique(np.asarray(found).round(5))) == {0.0, np.float32(1 / 0.75).round(5)}
    assert float(found.mean()) == pytest.approx(1, abs=0.02)
    np.testing.assert_array_equal(adapted_product(x, low, jnp.float32, None), x)

# SPDX-License-Identifier: Apache-2.0
"""One table embeds tokens and projects to logits (section 3.4)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply, run
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.embeddings import Embedding, gather_rows
from transformer_jax.runtime import platform

CONFIG = TransformerConfig(d_model=16, num_heads=4, dtype="float32")
TOKENS = np.array([[3, 0, 10], [7, 7, 1]])


def logits_of(module, x, bias=None):
    return module.unprojected(x, bias).logits()


@pytest.fixture
def embedding():
    return Embedding(CONFIG, vocab_size=11)


def test_padding_of_the_vocabulary_is_zero_and_has_no_logits(embedding):
    padded = Embedding(TransformerConfig(d_model=16, vocab_multiple=8, dtype="float32"), 11)
    fresh, plain = (
        run(module.init, jax.random.key(0), TOKENS, method="embed")["params"]["table"]
        for module in (padded, embedding)
    )
    np.testing.assert_array_equal(fresh, np.pad(plain, ((0, 5), (0, 0))))
    x = np.ones((2, 3, 16), np.float32)
    filled = fresh.copy()
    filled[11:] = 1e9
    logits, expected = (
        apply(module, {"params": {"table": table}}, x, method=logits_of)
        for module, table in ((padded, filled), (embedding, plain))
    )
    assert logits.shape == (2, 3, 11)
    np.testing.assert_allclose(logits, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_adds_the_gradient_in_a_fixed_order(compiling_for, dtype):
    """The gradient is that of the gather, which adds to the rows of equal tokens."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(11, 16)).astype(np.float32)
    weights = jnp.asarray(rng.normal(size=(2, 3, 16)), dtype)

    def gradient(table):
        return jax.grad(lambda table: (gather_rows(table, TOKENS, dtype) * weights).sum())(table)

    expected = jax.jit(gradient)(table)
    compiling_for("gpu")
    with platform.reproducible(True):
        assert "scatter" not in str(jax.make_jaxpr(gradient)(table))
        np.testing.assert_allclose(jax.jit(gradient)(table), expected, rtol=1e-6)
    assert "scatter" in str(jax.make_jaxpr(gradient)(table))


def test_vectors_start_with_unit_variance():
    embedding = Embedding(CONFIG, vocab_size=2000)
    variables = run(embedding.init, jax.random.key(0), TOKENS, method="embed")
    vectors = apply(embedding, variables, np.arange(2000)[None], method="embed")
    assert np.std(vectors) == pytest.approx(1, rel=0.02)
    assert np.mean(vectors) == pytest.approx(0, abs=0.02)

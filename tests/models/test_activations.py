# SPDX-License-Identifier: Apache-2.0
"""Activations between layers in bfloat16; parameters, norms and logits in float32."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from tests.models.texts import small_config
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.config import activation_dtype
from transformer_jax.nn.hooks import intercept_results
from transformer_jax.nn.transformer import Residual

TOKENS = np.random.default_rng(0).integers(4, 11, (2, 9)).astype(np.int32)
SIDE = (TOKENS, np.tile(np.arange(9, dtype=np.int32), (2, 1)), np.ones_like(TOKENS))
CASES = {EncoderDecoder: (*SIDE, *SIDE), DecoderOnly: SIDE, EncoderOnly: (*SIDE, TOKENS[:, :3] % 9)}


@pytest.mark.parametrize(
    "kind, placement", [(EncoderDecoder, "post"), (DecoderOnly, "pre"), (EncoderOnly, "sandwich")]
)
def test_the_stream_is_bfloat16_and_the_rest_float32(random_params, kind, placement):
    shared = {"norm_placement": placement, "embedding_norm": True, "num_token_types": 2}
    models = {
        name: kind(small_config(**shared, dtype="bfloat16", activation_dtype=name))
        for name in ("float32", "bfloat16")
    }
    variables = random_params(models["float32"], *CASES[kind])
    streams = []

    def look(x):
        streams.append(x.dtype)
        return x

    def loss(name, variables):
        with intercept_results(look, Residual, "write"):
            logits = models[name].apply(variables, *CASES[kind])
        assert logits.dtype == jnp.float32
        return jnp.square(logits).mean()

    compute = run if kind is EncoderDecoder else jax.eval_shape  # it has the layers of the others
    found = {
        name: compute(jax.value_and_grad(functools.partial(loss, name)), variables)
        for name in models
    }
    half = len(streams) // 2
    assert set(streams[:half]) == {jnp.dtype(jnp.float32)}
    assert set(streams[half:]) == {jnp.dtype(jnp.bfloat16)}
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}
    if kind is not EncoderDecoder:
        return
    (rounded, gradient), (exact, expected) = found["bfloat16"], found["float32"]
    assert rounded != exact and float(rounded) == pytest.approx(float(exact), rel=0.02)
    flat, reference = (jax.flatten_util.ravel_pytree(tree)[0] for tree in (gradient, expected))
    assert jnp.linalg.norm(flat - reference) < 0.15 * jnp.linalg.norm(reference)


def test_auto_is_bfloat16_on_accelerators_with_bfloat16_products(compiling_for):
    config = small_config(dtype="auto")
    assert activation_dtype(config) == jnp.float32  # on this CPU
    compiling_for("tpu")
    assert activation_dtype(config) == jnp.bfloat16
    assert activation_dtype(small_config()) == jnp.float32


def test_the_gradient_of_gathered_rows_is_added_up_in_float32():
    """A token occurs a thousand times; a sum in bfloat16 would stop growing at 256."""
    dtypes = {"dtype": "bfloat16", "activation_dtype": "bfloat16"}
    model = DecoderOnly(small_config(scale_embeddings=False, **dtypes))
    tokens = jnp.full((1, 1000), 5)
    variables = run(model.init, jax.random.key(0), *SIDE)
    embed = lambda v: model.apply(v, tokens, method=lambda m, t: m.embedding.embed(t))  # noqa: E731
    gradient = run(jax.grad(lambda v: embed(v).astype(jnp.float32).sum()), variables)
    np.testing.assert_array_equal(gradient["params"]["embedding"]["table"][5], 1000)

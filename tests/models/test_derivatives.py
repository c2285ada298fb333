# SPDX-License-Identifier: Apache-2.0
"""Forward-mode derivatives: Hessian-vector products of a whole model, with dropout."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.test_parts import CONFIG
from tests.models.texts import PACKED
from transformer_jax.losses import cross_entropy
from transformer_jax.models import apply_model
from transformer_jax.models.encoder_decoder import EncoderDecoder


def test_a_hessian_vector_product_is_the_change_of_the_gradient(random_params):
    """The first derivative along the vector is the gradient times the vector, too."""
    smooth = dataclasses.replace(CONFIG, activation="gelu", dropout_rate=0.2)
    model, inputs = EncoderDecoder(smooth), (*PACKED, *PACKED)
    params = jax.tree.map(lambda x: x / 2, random_params(model, *inputs)["params"])

    def loss(params):
        logits = apply_model(model, params, *inputs, rng=jax.random.key(1))
        labels = jnp.arange(logits.shape[1])[None] % logits.shape[2]
        return cross_entropy(logits, labels, 0.1).sum()

    rng = np.random.default_rng(0)
    vector = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), params)

    @jax.jit
    def along_the_vector(step):
        """Gradient after a step along the vector, and derivatives of loss and gradient there."""
        place = jax.tree.map(lambda x, v: x + step * v, params, vector)
        (_, gradient), (slope, product) = jax.jvp(jax.value_and_grad(loss), (place,), (vector,))
        return gradient, slope, product

    gradient, slope, product = along_the_vector(0.0)
    assert slope == pytest.approx(dot(gradient, vector), rel=1e-4)
    after, before = (along_the_vector(step)[0] for step in (1e-3, -1e-3))
    change = jax.tree.map(lambda a, b: (a - b) / 2e-3, after, before)
    error = jax.tree.map(jnp.subtract, product, change)
    assert dot(error, error) < 1e-3 * dot(change, change)


def dot(a, b):
    return float(sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b))))

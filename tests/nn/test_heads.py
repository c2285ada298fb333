"""Heads that share keys and values are heads with copies of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.nn.heads import head_products, head_sums

B, T, S, H, K = 2, 3, 5, 6, 4
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_neighbouring_heads_share(groups):
    query, shared, weights = (
        RNG.normal(size=shape).astype(np.float32)
        for shape in [(B, T, H, K), (B, S, groups, K), (B, H, T, S)]
    )
    copies = np.repeat(shared, H // groups, axis=2)
    products = np.einsum("bthk,bshk->bhts", query, copies)
    np.testing.assert_allclose(head_products(query, shared, jnp.float32), products, atol=1e-5)
    sums = np.einsum("bhts,bshk->bthk", weights, copies)
    np.testing.assert_allclose(head_sums(weights, shared, jnp.float32), sums, atol=1e-5)


def test_no_key_is_repeated():
    query, key = jnp.ones((B, 1, H, K)), jnp.ones((B, 50, 1, K))
    jaxpr = jax.make_jaxpr(lambda query, key: head_products(query, key, jnp.float32))(query, key)
    sizes = [v.aval.size for equation in jaxpr.eqns for v in equation.outvars]
    assert max(sizes) == B * 50 * H  # the products

# SPDX-License-Identifier: Apache-2.0
"""Axes that engines lend to layers and losses."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.nn import per_device


def test_rows_of_all_devices():
    """Four devices with two rows each, as an axis of `vmap`."""
    (alone,), first = per_device.all_rows(jnp.arange(3))
    assert alone.tolist() == [0, 1, 2] and first == 0

    def lend(role):
        return per_device.LentAxis("devices", 4, None) if role == "device_rows" else None

    def loss(x):
        with per_device.use_axes(lend):
            (everywhere,), first = per_device.all_rows(x)
        return everywhere, first, (x.sum() * everywhere.sum())

    x = jnp.arange(8.0).reshape(4, 2)
    everywhere, first, products = jax.vmap(loss, axis_name="devices")(x)
    np.testing.assert_array_equal(everywhere, np.tile(np.arange(8), (4, 1)))
    np.testing.assert_array_equal(first, [0, 2, 4, 6])
    gradient = jax.grad(lambda x: jax.vmap(loss, axis_name="devices")(x)[2].sum())(x)
    np.testing.assert_array_equal(gradient, np.full((4, 2), 2 * 28.0))  # of (sum x)^2
    np.testing.assert_array_equal(products.sum(), 28**2)

# SPDX-License-Identifier: Apache-2.0
"""Dropout (section 5.4), with random bits that are generated where they are used."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt

from transformer_jax.nn import per_device
from transformer_jax.nn.per_device import sharded_call
from transformer_jax.nn.traced_numbers import DropoutRate, dropout_rate, traced_number
from transformer_jax.runtime import platform

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)  # bits that Threefry-2x32 rotates by, round by round
_KEY_PARITY = 0x1BD11BDA  # Threefry's constant of the third word of a key's schedule


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` and scales the rest to keep the mean; uses the
    rng stream "dropout".

    Attributes:
      bits: source of random bits, a value of `model.dropout_bits`.
      field: field of the config with the rate, in which replicas may differ (`nn.traced_numbers`);
        None: they may not.
    """

    rate: float
    bits: str = "threefry"
    field: str | None = None

    @classmethod
    def of(cls, config: Any, name: str) -> "Dropout":
        """Dropout at the rate `name` of a `ModelConfig`; None is that of the model."""
        rate = getattr(config, name)
        rate = config.dropout_rate if rate is None else rate
        return cls(rate, config.dropout_bits, f"model.{name}")

    @nn.compact
    def __call__(self, x: Float[Array, "..."], deterministic: bool) -> Float[Array, "..."]:
        if deterministic or self.rate == 0:
            return x
        by_hardware = self.bits == "hardware" or (self.bits == "auto" and not platform.is_cpu())
        source = hardware_bits if by_hardware else threefry_bits
        rate = traced_number(self.field, dropout_rate(self.rate))
        return drop_elements(x, jax.random.key_data(self.make_rng("dropout")), rate, source)


@partial(jax.checkpoint, prevent_cse=False, static_argnums=3)
def drop_elements(
    x: Float[Array, "*shape"],
    key: UInt[Array, " words"],
    rate: DropoutRate,
    source: Callable[[Array, tuple[int, ...]], UInt[Array, "..."]],
) -> Float[Array, "*shape"]:
    """Multiplies each element of x by 0 or 1 / (1 - rate).

    The gradient generates the same bits again from the same key data, so that no mask is kept.
    """
    threshold, factor = rate
    return jnp.where(source(key, x.shape) >= threshold, x * factor.astype(x.dtype), 0.0)


def hardware_bits(key: UInt[Array, " words"], shape: tuple[int, ...]) -> UInt[Array, "..."]:
    """Uniform uint32 of `shape` from the generator that XLA chooses: the TPU's own, or Philox
    (Salmon et al. 2011).

    Each device generates the bits of its own rows and tokens, with a key made from the numbers of
    the first; XLA would generate all bits on each device. So the bits depend on the sharding.
    """
    rows, tokens = (jnp.arange(size, dtype=jnp.uint32) for size in shape[:2])

    def bits_on_device(rows: UInt[Array, " B"], tokens: UInt[Array, " T"]) -> UInt[Array, "B ..."]:
        words = jnp.stack(_threefry(key, rows[0], tokens[0]))
        state = jnp.concatenate([words, words])  # 128 bits, as the generator needs
        shard_shape = (len(rows), len(tokens), *shape[2:])
        return jax.lax.rng_bit_generator(state, shard_shape, dtype=jnp.uint32)[1]

    lent = per_device.axis("sequence")
    if lent is not None and len(shape) == 3 and shape[1] % lent.size == 0:
        in_axes = ("rows", "sequence")
        return lent.shard_map(bits_on_device, in_axes, "rows sequence features")(rows, tokens)
    return sharded_call(lambda _, of_rows: bits_on_device(of_rows[0], tokens), (), (rows,))


@partial(jax.jit, static_argnums=1)  # traced and lowered once per shape, not once per layer
def threefry_bits(key: UInt[Array, " words"], shape: tuple[int, ...]) -> UInt[Array, "..."]:
    """Uniform uint32 of `shape`; each depends on the key's first two words (`key_data`), its row
    and its place in the row.

    The generator is that of `jax.random.bits`, Threefry-2x32 with 20 rounds (Salmon et al. 2011).
    XLA fuses the plain operations here into the loop that drops elements, so that no array of bits
    is stored.
    """
    row = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    place = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        place = place * shape[axis] + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    first, second = _threefry(key, row, place)
    return first ^ second


def _threefry(key: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Threefry-2x32: encrypts two 32-bit words with the first two words of a key."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_KEY_PARITY))
    x = x + keys[0]
    y = y + keys[1]
    for i in range(20):
        bits = _ROTATIONS[i % 8]
        x += y
        y = ((y << bits) | (y >> (32 - bits))) ^ x
        if i % 4 == 3:  # the key enters again after every fourth round
            turn = i // 4 + 1
            x += keys[turn % 3]
            y = y + keys[(turn + 1) % 3] + jnp.uint32(turn)
    return x, y

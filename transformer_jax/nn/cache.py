"""What a decoder keeps of the tokens behind it, laid out as its products read it.

Put down as layers put them out, or in another type, a loop would transpose or round all keys and
values at every turn.

B sentences, J beams of a sentence, N = B J rows, T new positions, L slots, S keys, G heads of keys
and values, K key size of a head, V value size of a head.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.products import dtype_for_rows, product_dtype


@struct.dataclass
class KeysValues:
    """Keys and values that stay as they are, such as those of an encoder's output.

    Attributes:
      keys: [B, G, S, K].
      values: [B, G, S, V].
    """

    keys: jax.Array
    values: jax.Array

    @classmethod
    def of(cls, key: jax.Array, value: jax.Array) -> "KeysValues":
        """From [B, S, G, K] and [B, S, G, V]."""
        return cls(jnp.moveaxis(key, 1, 2), jnp.moveaxis(value, 1, 2))

    def rounded(self, config: TransformerConfig) -> "KeysValues":
        """In the type of the products that they are kept for."""
        dtype = _kept_dtype(config)
        return KeysValues(self.keys.astype(dtype), self.values.astype(dtype))

    def by_position(self) -> tuple[jax.Array, jax.Array]:
        """[B, S, G, K] and [B, S, G, V]; for the compiler views, as `nn.heads` turns them back."""
        return jnp.moveaxis(self.keys, 2, 1), jnp.moveaxis(self.values, 2, 1)


@struct.dataclass
class KVCache:
    """Keys and values of the positions decoded so far, of all beams of each sentence.

    What a beam wrote stays in the place of that beam, whoever goes on from it: `follow` changes
    `origins` alone. The beams of a sentence look at all of its places in one product, and the mask
    leaves each its own past.

    Attributes:
      keys: [B, G, L, J, K], in the type of the products.
      values: [B, G, L, J, V], likewise.
      origins: int32 [B, J, L], the place in which a beam's past lies, slot by slot.
      length: int32 [B], the slots filled; what lies beyond is never looked at.
    """

    keys: jax.Array
    values: jax.Array
    origins: jax.Array
    length: jax.Array

    @classmethod
    def empty(cls, config: TransformerConfig, rows: int, max_length: int) -> "KVCache":
        """A cache for one beam of each of `rows` sentences, with `max_length` slots."""
        slots, dtype = (rows, config.key_value_heads, max_length, 1), _kept_dtype(config)
        return cls(
            keys=jnp.zeros((*slots, config.d_k), dtype),
            values=jnp.zeros((*slots, config.d_v), dtype),
            origins=jnp.zeros((rows, 1, max_length), jnp.int32),
            length=jnp.zeros(rows, jnp.int32),
        )

    @property
    def num_beams(self) -> int:
        """J."""
        return self.origins.shape[1]

    def follow(self, parents: jax.Array) -> "KVCache":
        """The cache of new beams, each of which goes on from one of the old: parents [B, K] of J,
        K at least J."""
        more = parents.shape[1] - self.num_beams
        if self.num_beams == 1 and not more:
            return self
        return self.replace(
            keys=_widened(self.keys, more),
            values=_widened(self.values, more),
            origins=jnp.take_along_axis(self.origins, parents[:, :, None], axis=1),
        )

    def append(self, key: jax.Array, value: jax.Array) -> "KVCache":
        """Writes the keys and values of T new positions, [N, T, G, K] and [N, T, G, V]."""
        beams, num_new = self.num_beams, key.shape[1]
        key, value = (  # [B, G, T, J, K] and [B, G, T, J, V]
            x.reshape(-1, beams, *x.shape[1:]).transpose(0, 3, 2, 1, 4) for x in (key, value)
        )
        own = jnp.broadcast_to(jnp.arange(beams)[:, None], (len(key), beams, num_new))
        return KVCache(
            keys=_written(self.keys, key, self.length),
            values=_written(self.values, value, self.length),
            # One beam's past lies where it always did.
            origins=_written(self.origins, own, self.length) if beams > 1 else self.origins,
            length=self.length + num_new,
        )

    def by_position(self) -> tuple[jax.Array, jax.Array]:
        """All places as those of the sentence, S = L J: [B, S, G, K] and [B, S, G, V]."""
        places = (x.reshape(*x.shape[:2], -1, x.shape[4]) for x in (self.keys, self.values))
        return KeysValues(*places).by_position()

    def of_sentences(self, x: jax.Array) -> jax.Array:
        """Beams as further queries of their sentence: [N, T, ...] -> [B, J T, ...]."""
        return x.reshape(len(self.length), -1, *x.shape[2:])

    @property
    def positions(self) -> jax.Array:
        """Of all places: [B, S]."""
        slots = jnp.repeat(jnp.arange(self.origins.shape[2]), self.num_beams)
        return jnp.broadcast_to(slots, (len(self.length), len(slots)))

    def next_positions(self, num_new: int) -> jax.Array:
        """Of the next T tokens of each beam: [N, T]."""
        return jnp.repeat(self.length, self.num_beams)[:, None] + jnp.arange(num_new)

    def mask(self, num_new: int) -> jax.Array:
        """[B, 1, J T, S]: each of the last T positions looks at its beam's past and itself."""
        beams, slots = self.origins.shape[1:]
        own = self.origins[:, :, None, :, None] == jnp.arange(beams)  # [B, J, 1, L, J]
        reach = self.length[:, None] - num_new + jnp.arange(num_new)  # [B, T]
        past = jnp.arange(slots) <= reach[:, :, None]  # [B, T, L]
        return (own & past[:, None, :, :, None]).reshape(-1, 1, beams * num_new, slots * beams)


def _kept_dtype(config: TransformerConfig) -> jnp.dtype:
    """In which keys and values are kept: that of a new token's products with them."""
    return dtype_for_rows(1, product_dtype(config.dtype))


def _widened(x: jax.Array, more: int) -> jax.Array:
    """[B, G, L, J, ...] with empty places for more beams."""
    return jnp.pad(x, [(0, more if axis == 3 else 0) for axis in range(x.ndim)])


def _written(slots: jax.Array, new: jax.Array, starts: jax.Array) -> jax.Array:
    """Overwrites slots [B, ?, L, ...] of each sentence from its start on."""
    write = partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
    return jax.vmap(write)(slots, new.astype(slots.dtype), starts)

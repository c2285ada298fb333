"""What a decoder keeps: keys and values of the encoder's output and of the tokens decoded so far.

Stored in the layout and dtype that the attention products read; otherwise XLA would transpose or
cast the whole cache at every step.

B sentences, J beams of a sentence, N = B J rows, T new positions, L slots, S keys, G heads of keys
and values, K key size of a head, V value size of a head, D model.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from transformer_jax.nn.attention_inputs import AttentionInputs, Segments
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.ops import dtype_for_rows, product_dtype


class Encoded(struct.PyTreeNode):
    """The encoder's output, before a decoder layer has made its memory of it.

    Attributes:
      output: [B, S, D].
      seen: which of it is seen, as a mask [B, 1, T, S] or [B, 1, 1, S] or by segments.
    """

    output: Float[Array, "B S D"]
    seen: Bool[Array, "B 1 #T S"] | Segments


class Memory(struct.PyTreeNode):
    """The encoder's output as one decoder layer attends to it, once for each sentence.

    Attributes:
      keys: [B, G, S, K].
      values: [B, G, S, V].
      mask: [B, 1, T, S] or [B, 1, 1, S]; which source positions a target position sees.
      segments: from which the mask was made, if it was.
    """

    keys: Float[Array, "B G S K"]
    values: Float[Array, "B G S V"]
    mask: Bool[Array, "B 1 #T S"]
    segments: Segments | None = None

    @classmethod
    def of(
        cls,
        key: Float[Array, "B S G K"],
        value: Float[Array, "B S G V"],
        seen: Bool[Array, "B 1 #T S"] | Segments,
    ) -> "Memory":
        """From what a layer projected, and which of it is seen."""
        segments = seen if isinstance(seen, Segments) else None
        mask = seen.mask() if isinstance(seen, Segments) else seen
        return cls(jnp.moveaxis(key, 1, 2), jnp.moveaxis(value, 1, 2), mask, segments)

    def cast(self, config: TransformerConfig) -> "Memory":
        """In the dtype of the products of a search, to be kept for many steps."""
        dtype = _kept_dtype(config)
        return self.replace(keys=self.keys.astype(dtype), values=self.values.astype(dtype))

    def inputs(self, query: Float[Array, "B T H K"]) -> AttentionInputs:
        """The attention of queries to this memory."""
        keys, values = _by_position(self.keys, self.values)
        return AttentionInputs(query, keys, values, self.mask, segments=self.segments)


class KVCache(struct.PyTreeNode):
    """Keys and values of the positions decoded so far, of all beams of each sentence.

    What a beam wrote stays in that beam's place, whichever beam continues it: `reorder` changes
    only `origins`. The beams of a sentence attend to all of its places in one product, and the mask
    leaves each only its own past.

    Attributes:
      keys: [B, G, L, J, K], in the dtype of the products.
      values: [B, G, L, J, V], likewise.
      origins: int32 [B, J, L], the place that holds a beam's past, slot by slot.
      length: int32 [B], the slots filled; what lies beyond is never read.
    """

    keys: Float[Array, "B G L J K"]
    values: Float[Array, "B G L J V"]
    origins: Int[Array, "B J L"]
    length: Int[Array, " B"]

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

    def reorder(self, parents: Int[Array, "B K"]) -> "KVCache":
        """The cache of K >= J new beams, each of which continues one of the J old ones."""
        more = parents.shape[1] - self.num_beams
        if self.num_beams == 1 and not more:
            return self
        return self.replace(
            keys=_widened(self.keys, more),
            values=_widened(self.values, more),
            origins=jnp.take_along_axis(self.origins, parents[:, :, None], axis=1),
        )

    def append(self, key: Float[Array, "N T G K"], value: Float[Array, "N T G V"]) -> "KVCache":
        """Writes the keys and values of T new positions."""
        beams, num_new = self.num_beams, key.shape[1]
        key, value = (  # [B, G, T, J, K] and [B, G, T, J, V]
            x.reshape(-1, beams, *x.shape[1:]).transpose(0, 3, 2, 1, 4) for x in (key, value)
        )
        own = jnp.broadcast_to(jnp.arange(beams)[:, None], (len(key), beams, num_new))
        return KVCache(
            keys=_written(self.keys, key, self.length),
            values=_written(self.values, value, self.length),
            # With one beam the past never changes its place.
            origins=_written(self.origins, own, self.length) if beams > 1 else self.origins,
            length=self.length + num_new,
        )

    def inputs(
        self, query: Float[Array, "N T H K"], positions: Int[Array, "N T"]
    ) -> AttentionInputs:
        """The attention of the last T positions to this cache: S = L J places of each sentence, and
        J T queries, its beams' one after the other."""
        places = (x.reshape(*x.shape[:2], -1, x.shape[4]) for x in (self.keys, self.values))
        return AttentionInputs(
            self._of_sentences(query),
            *_by_position(*places),
            mask=self._mask(query.shape[1]),
            query_positions=self._of_sentences(positions),
            key_positions=self._positions(),
        )

    def next_positions(self, num_new: int) -> Int[Array, "N T"]:
        """Of the next T tokens of each beam."""
        return jnp.repeat(self.length, self.num_beams)[:, None] + jnp.arange(num_new)

    def _of_sentences(self, x: Shaped[Array, "N T ..."]) -> Shaped[Array, "B JT ..."]:
        return x.reshape(len(self.length), -1, *x.shape[2:])

    def _positions(self) -> Int[Array, "B S"]:
        slots = jnp.repeat(jnp.arange(self.origins.shape[2]), self.num_beams)
        return jnp.broadcast_to(slots, (len(self.length), len(slots)))

    def _mask(self, num_new: int) -> Bool[Array, "B 1 JT S"]:
        """Each of the last T positions sees its beam's past and itself."""
        beams, slots = self.origins.shape[1:]
        own = self.origins[:, :, None, :, None] == jnp.arange(beams)  # [B, J, 1, L, J]
        reach = self.length[:, None] - num_new + jnp.arange(num_new)  # [B, T]
        past = jnp.arange(slots) <= reach[:, :, None]  # [B, T, L]
        return (own & past[:, None, :, :, None]).reshape(-1, 1, beams * num_new, slots * beams)


def _by_position(
    keys: Float[Array, "B G S K"], values: Float[Array, "B G S V"]
) -> tuple[Float[Array, "B S G K"], Float[Array, "B S G V"]]:
    """As attention takes them; no copies, since `nn.ops` permutes them back."""
    return jnp.moveaxis(keys, 2, 1), jnp.moveaxis(values, 2, 1)


def _kept_dtype(config: TransformerConfig) -> jnp.dtype:
    """That of a new token's products with keys and values."""
    return dtype_for_rows(1, product_dtype(config.dtype))


def _widened(x: Shaped[Array, "B G L J K"], more: int) -> Shaped[Array, "B G L J2 K"]:
    """With empty places for more beams."""
    return jnp.pad(x, [(0, more if axis == 3 else 0) for axis in range(x.ndim)])


def _written(
    slots: Shaped[Array, "B X L ..."], new: Shaped[Array, "B X T ..."], starts: Int[Array, " B"]
) -> Shaped[Array, "B X L ..."]:
    """Overwrites each sentence's slots from its start on."""
    write = partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
    return jax.vmap(write)(slots, new.astype(slots.dtype), starts)


# FOLDED models.prompt: Prompts of unequal length, decoded in one batch.


def after_prompts(
    x: Float[Array, "B P D"], lengths: Int[Array, " B"], caches: tuple[KVCache, ...]
) -> tuple[Float[Array, "B 1 D"], tuple[KVCache, ...]]:
    """The features of each prompt's last token, and caches that end there."""
    last = jnp.take_along_axis(x, lengths[:, None, None] - 1, axis=1)
    return last, tuple(cache.replace(length=lengths) for cache in caches)

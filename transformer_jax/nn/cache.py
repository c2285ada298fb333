# SPDX-License-Identifier: Apache-2.0
"""Keys and values that a decoder keeps: of the encoder's output and of the tokens decoded so far.

They have the layout and dtype that the attention products read: otherwise XLA would transpose or
cast the whole cache at every step.

B sentences, J beams of a sentence, N = B J rows, T new tokens, L slots, S keys, P prompt, G heads
of keys and values, K key size of a head, V value size of a head, D model.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Shaped

from transformer_jax.nn.attention_inputs import AttentionInputs
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.masks import Segments
from transformer_jax.nn.ops import dtype_for_rows, product_dtype


class EncoderOutput(struct.PyTreeNode):
    """The encoder's output, and the mask of the source tokens that a target token sees, or the
    segments that it is made from. Each decoder layer computes its memory from it."""

    features: Float[Array, "B S D"]
    visible: Bool[Array, "B 1 #T S"] | Segments


class Memory(struct.PyTreeNode):
    """One decoder layer's keys and values of the encoder's output, one row for each sentence.
    `segments` are those that the mask was made from, if any."""

    keys: Float[Array, "B G S K"]
    values: Float[Array, "B G S V"]
    mask: Bool[Array, "B 1 #T S"]
    segments: Segments | None = None

    @classmethod
    def of(
        cls,
        key: Float[Array, "B S G K"],
        value: Float[Array, "B S G V"],
        visible: Bool[Array, "B 1 #T S"] | Segments,
    ) -> "Memory":
        segments = visible if isinstance(visible, Segments) else None
        mask = visible.mask() if isinstance(visible, Segments) else visible
        return cls(jnp.moveaxis(key, 1, 2), jnp.moveaxis(value, 1, 2), mask, segments)

    def cast(self, config: TransformerConfig) -> "Memory":
        """Casts it to the dtype of the products of one token, for the many steps of a search.

        If several beams need another dtype, XLA casts it once, before the loop.
        """
        rows = config.num_heads // config.key_value_heads
        dtype = dtype_for_rows(rows, product_dtype(config.dtype))
        return self.replace(keys=self.keys.astype(dtype), values=self.values.astype(dtype))

    def inputs(self, query: Float[Array, "B T H K"]) -> AttentionInputs:
        """Attention inputs of queries that attend to this memory."""
        # No copies, as `nn.ops` moves the axes back.
        keys = jnp.moveaxis(self.keys, 2, 1)
        values = jnp.moveaxis(self.values, 2, 1)
        return AttentionInputs(query, keys, values, self.mask, segments=self.segments)


REWINDABLE_TOKENS = 65
"""Tokens that `rewind` can take back: the longest draft (`decode.draft_length`), and one more."""


class Recent(struct.PyTreeNode):
    """The last tokens of each of the J beams of B sentences, as a part of a cache: what a
    convolution or a token shift still reads (`nn.sublayers.Sequences.look_back`).

    Attributes:
      values: the newest last; before the first token they are zeros.
      count: number of tokens that are read. One beam has more, which a `rewind` uncovers.
    """

    values: Shaped[Array, "B J P ..."]
    count: int = struct.field(pytree_node=False)

    @classmethod
    def empty(
        cls,
        rows: int,
        count: int,
        shape: tuple[int, ...],
        dtype: DTypeLike = jnp.float32,
        rewindable: bool = True,
    ) -> "Recent":
        """The last `count` tokens of one beam of each sentence, values of this shape each."""
        size = count + REWINDABLE_TOKENS if rewindable else count
        return cls(jnp.zeros((rows, 1, size, *shape), dtype), count)

    @property
    def num_beams(self) -> int:
        return self.values.shape[1]

    @property
    def rewindable(self) -> bool:
        return self.values.shape[2] >= self.count + REWINDABLE_TOKENS

    def append(
        self, x: Shaped[Array, "N T ..."], real: Bool[Array, "N T"] | None
    ) -> tuple[Shaped[Array, "N S ..."], "Recent"]:
        """Returns the last `count` tokens followed by T new ones, S in all, and what is left for
        the tokens after them. `real` is False for padding at the end of a row."""
        size = self.values.shape[2]
        past = self.values.reshape(len(x), *self.values.shape[2:])  # not -1: size may be 0
        row = jnp.concatenate([past.astype(x.dtype), x], axis=1)
        ends = jnp.full(len(x), x.shape[1]) if real is None else real.sum(1)
        last = jax.vmap(partial(jax.lax.dynamic_slice_in_dim, slice_size=size))(row, ends)
        last = last.reshape(self.values.shape).astype(self.values.dtype)
        return row[:, size - self.count :], self.replace(values=last)

    def reorder(self, parents: Int[Array, "B K"]) -> "Recent":
        # Several beams are never rewound.
        first = 0 if parents.shape[1] == 1 else self.values.shape[2] - self.count
        rows = jnp.arange(len(parents))[:, None]
        return self.replace(values=self.values[:, :, first:][rows, parents])

    def rewind(self, counts: Int[Array, " N"]) -> "Recent":
        # The tokens that come round to the front are older than any that is read again.
        return self.replace(values=jax.vmap(partial(jnp.roll, axis=1))(self.values, counts))


class Cache(struct.PyTreeNode):
    """Base class of what an attention layer keeps of the tokens decoded so far, for the J beams of
    each of B sentences. Its bytes are those of `jax.eval_shape` of `AttentionLayer.init_cache`.

    Fields of a subclass are arrays [B, J, ...], a state of each beam, or parts such as `Recent` and
    other caches, or they are named in `by_slot`. A state cannot be rewound, unless the subclass has
    a `rewind` of its own.

    Attributes:
      length: int32 [B], number of tokens read.
      by_slot: fields that keep each token in a slot of its own, numbered up to `length`; the class
        reorders them itself.
    """

    by_slot = tuple[str, ...]()  # without annotation: it is no field

    length: Int[Array, " B"]

    def _states(self) -> dict[str, Any]:
        """Fields besides `length` and those by slot."""
        names = [field.name for field in fields(self) if field.metadata.get("pytree_node", True)]
        return {
            name: getattr(self, name) for name in names if name not in ("length", *self.by_slot)
        }

    @property
    def num_beams(self) -> int:
        """Number of beams J of a sentence."""
        part = jax.tree.leaves(self._states(), is_leaf=_is_part)[0]
        return part.num_beams if _is_part(part) else part.shape[1]

    def reorder(self, parents: Int[Array, "B K"]) -> "Cache":
        """Cache of K >= J new beams; each continues the old beam that `parents` names."""
        rows = jnp.arange(len(parents))[:, None]

        def reordered(part: Any) -> Any:
            return part.reorder(parents) if _is_part(part) else part[rows, parents]

        return self.replace(**jax.tree.map(reordered, self._states(), is_leaf=_is_part))

    @property
    def rewindable(self) -> bool:
        """Returns True if `rewind` restores all fields."""
        definer = next(cls for cls in type(self).__mro__ if "rewind" in vars(cls))
        known = () if definer is Cache else [field.name for field in fields(definer)]
        states = {name: state for name, state in self._states().items() if name not in known}
        leaves = jax.tree.leaves(states, is_leaf=_is_part)
        return all(_is_part(part) and part.rewindable for part in leaves)

    def rewind(self, counts: Int[Array, " N"]) -> "Cache":
        """Cache without the last `counts` tokens of each row; each sentence has one beam."""
        parts = jax.tree.map(lambda part: part.rewind(counts), self._states(), is_leaf=_is_part)
        return self.replace(length=self.length - counts, **parts)

    def next_positions(self, num_new: int) -> Int[Array, "N T"]:
        """Positions of the next T tokens of each beam, int32 [N, T]."""
        return jnp.repeat(self.length, self.num_beams)[:, None] + jnp.arange(num_new)

    def ending_at(self, lengths: Int[Array, " B"]) -> "Cache":
        """Cache that ends with the last real token of each prompt, for prompts of unequal lengths
        read in one batch."""

        def ended(part: Any) -> Any:
            return part.ending_at(lengths) if isinstance(part, Cache) else part

        parts = jax.tree.map(ended, self._states(), is_leaf=_is_part)
        return self.replace(length=lengths, **parts)


def _is_part(part: Any) -> bool:
    return isinstance(part, Recent | Cache)


class KVCache(Cache):
    """Keys and values of the tokens decoded so far, for all beams of each sentence.

    They are never moved: `reorder` only changes `origins`. The beams of a sentence attend to the
    keys of all its beams in one product, and the mask leaves each beam its own past.

    Attributes:
      origins: for each beam and slot, the beam index at which its key is stored.
      length: int32 [B], number of slots filled; later slots are never read.
      dtype: dtype of products with many rows.
      sharing: heads of queries that share a head of keys.
      per_key: further values of each token, which attention reads beside its key
        (`MultiHeadAttention.per_key`).
    """

    by_slot = ("keys", "values", "origins", "per_key")

    keys: Float[Array, "B G L J K"]
    values: Float[Array, "B G L J V"]
    origins: Int[Array, "B J L"]
    dtype: jnp.dtype = struct.field(pytree_node=False)
    sharing: int = struct.field(pytree_node=False)
    per_key: Mapping[str, Float[Array, "B 1 L J ..."]] = struct.field(default_factory=dict)

    @classmethod
    def empty(cls, config: TransformerConfig, rows: int, max_length: int) -> "KVCache":
        """Cache for one beam of each of `rows` sentences, with `max_length` slots."""
        heads = config.key_value_heads
        return cls.of_sizes(heads, config.d_k, config.d_v, config, rows, max_length)

    @classmethod
    def of_sizes(
        cls,
        heads: int,
        key_size: int,
        value_size: int,
        config: TransformerConfig,
        rows: int,
        max_length: int,
    ) -> "KVCache":
        """Empty cache with other heads of keys and values than the config's."""
        slots = (rows, heads, max_length, 1)
        dtype = product_dtype(config.dtype)
        sharing = config.num_heads // heads
        stored_dtype = dtype_for_rows(sharing, dtype)
        return cls(
            keys=jnp.zeros((*slots, key_size), stored_dtype),
            values=jnp.zeros((*slots, value_size), stored_dtype),
            origins=jnp.zeros((rows, 1, max_length), jnp.int32),
            length=jnp.zeros(rows, jnp.int32),
            dtype=dtype,
            sharing=sharing,
        )

    @property
    def num_beams(self) -> int:
        return self.origins.shape[1]

    def reorder(self, parents: Int[Array, "B K"]) -> "KVCache":
        num_added = parents.shape[1] - self.num_beams
        if self.num_beams == 1 and not num_added:
            return self
        # The queries of all beams are the rows of one product, and one row may need another dtype.
        stored_dtype = dtype_for_rows(self.sharing * parents.shape[1], self.dtype)
        reordered: Any = super().reorder(parents)
        return reordered.replace(
            keys=_add_beams(self.keys.astype(stored_dtype), num_added),
            values=_add_beams(self.values.astype(stored_dtype), num_added),
            per_key={name: _add_beams(x, num_added) for name, x in self.per_key.items()},
            origins=jnp.take_along_axis(self.origins, parents[:, :, None], axis=1),
        )

    def with_per_key(self, shapes: Mapping[str, tuple[int, ...]]) -> "KVCache":
        """Empty cache with values of these shapes for each token besides its key."""
        rows, _, slots, beams = self.keys.shape[:4]
        per_key = {name: jnp.zeros((rows, 1, slots, beams, *x)) for name, x in shapes.items()}
        return self.replace(per_key=per_key)

    def last(self, name: str) -> Float[Array, "N ..."]:
        """Value per key of the last token of each row; zeros before the first token."""
        slot = jnp.maximum(self.length - 1, 0)
        newest = jax.vmap(lambda x, i: x[0, i])(self.per_key[name], slot)  # [B, J, ...]
        origins = jax.vmap(lambda x, i: x[:, i])(self.origins, slot)  # [B, J]
        value = jax.vmap(lambda x, beams: x[beams])(newest, origins)
        value = value.reshape(-1, *value.shape[2:])
        is_empty = jnp.repeat(self.length == 0, self.num_beams)
        return jnp.where(is_empty.reshape(-1, *[1] * (value.ndim - 1)), 0, value)

    def append(
        self,
        key: Float[Array, "N T G K"],
        value: Float[Array, "N T G V"],
        per_key: Mapping[str, Float[Array, "N T ..."]] | None = None,
    ) -> "KVCache":
        """Writes the keys and values of T new tokens, and what they have per key."""
        beams = self.num_beams
        num_new = key.shape[1]
        key, value = (  # [B, G, T, J, K] and [B, G, T, J, V]
            x.reshape(len(self.length), beams, *x.shape[1:]).transpose(0, 3, 2, 1, 4)
            for x in (key, value)
        )
        origins = jnp.broadcast_to(jnp.arange(beams)[:, None], (len(key), beams, num_new))
        new_per_key = dict(self.per_key)
        for name, x in (per_key or {}).items():
            by_beam = x.reshape(len(self.length), beams, *x.shape[1:])
            new = jnp.moveaxis(by_beam, 1, 2)[:, None]  # [B, 1, T, J, ...]
            new_per_key[name] = _write(self.per_key[name], new, self.length)
        return self.replace(
            keys=_write(self.keys, key, self.length),
            values=_write(self.values, value, self.length),
            # With one beam all origins are 0.
            origins=_write(self.origins, origins, self.length) if beams > 1 else self.origins,
            length=self.length + num_new,
            per_key=new_per_key,
        )

    def inputs(
        self, query: Float[Array, "N T H K"], positions: Int[Array, "N T"]
    ) -> AttentionInputs:
        """Attention inputs of the last T tokens. Each sentence has S = L J keys, and J T queries:
        those of its beams, one beam after the other."""
        num_keys = self.origins[0].size  # not -1: values may have size 0
        slots = jnp.repeat(jnp.arange(self.origins.shape[2]), self.num_beams)
        key, value = (  # [B, S, G, K] and [B, S, G, V]
            jnp.moveaxis(x.reshape(*x.shape[:2], num_keys, x.shape[4]), 2, 1)
            for x in (self.keys, self.values)
        )
        return AttentionInputs(
            self._by_sentence(query),
            key,
            value,
            mask=self._mask(query.shape[1]),
            query_positions=self._by_sentence(positions),
            key_positions=jnp.broadcast_to(slots, (len(self.length), len(slots))),
            past=self._mask(query.shape[1], looks_ahead=True),
            per_key={
                name: x.reshape(len(x), num_keys, *x.shape[4:]) for name, x in self.per_key.items()
            },
        )

    def _by_sentence(self, x: Shaped[Array, "N T ..."]) -> Shaped[Array, "B JT ..."]:
        return x.reshape(len(self.length), -1, *x.shape[2:])

    def _mask(self, num_new: int, looks_ahead: bool = False) -> Bool[Array, "B 1 JT S"]:
        """Mask of the last T tokens: each sees its beam's past and itself, or if it looks ahead all
        T of them."""
        beams, slots = self.origins.shape[1:]
        of_beam = self.origins[:, :, None, :, None] == jnp.arange(beams)  # [B, J, 1, L, J]
        last_seen = jnp.full(num_new, num_new - 1) if looks_ahead else jnp.arange(num_new)
        last_slots = self.length[:, None] - num_new + last_seen  # [B, T]
        past = jnp.arange(slots) <= last_slots[:, :, None]  # [B, T, L]
        mask = of_beam & past[:, None, :, :, None]  # [B, J, T, L, J]
        return mask.reshape(-1, 1, beams * num_new, slots * beams)


def _add_beams(x: Shaped[Array, "B G L J ..."], number: int) -> Shaped[Array, "B G L J2 ..."]:
    return jnp.pad(x, [(0, number if axis == 3 else 0) for axis in range(x.ndim)])


def _write(
    slots: Shaped[Array, "B X L ..."], new: Shaped[Array, "B X T ..."], starts: Int[Array, " B"]
) -> Shaped[Array, "B X L ..."]:
    write = partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
    return jax.vmap(write)(slots, new.astype(slots.dtype), starts)


def state_bytes(state: Any, num_beams: int = 1) -> int:
    """Bytes of a decoding state of one beam a sentence (of arrays or of their shapes) after it has
    got `num_beams` beams."""

    def with_beams(part: Any) -> Any:
        if isinstance(part, Cache):
            return part.reorder(jnp.zeros((len(part.length), num_beams), jnp.int32))
        return jnp.repeat(part, num_beams, axis=0)

    parts = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, Cache))
    arrays = jax.tree.leaves([jax.eval_shape(with_beams, part) for part in parts])
    return sum(array.size * array.dtype.itemsize for array in arrays)


def at_prompt_ends(
    x: Float[Array, "B P D"], lengths: Int[Array, " B"], caches: tuple[Cache, ...]
) -> tuple[Float[Array, "B 1 D"], tuple[Cache, ...]]:
    """Features of each prompt's last token, and caches that end with it, for prompts of unequal
    lengths in one batch."""
    last = jnp.take_along_axis(x, lengths[:, None, None] - 1, axis=1)
    return last, tuple(cache.ending_at(lengths) for cache in caches)

# SPDX-License-Identifier: Apache-2.0
"""The KV cache equals literal slots, and histories in plain lists."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from transformer_jax.decoding.interface import can_rewind
from transformer_jax.nn.cache import Cache, KVCache, Memory, Recent, state_bytes
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.sublayers import Sequences

H, K, V = 2, 5, 3
CONFIG = TransformerConfig(d_model=16, num_heads=H, key_size=K, value_size=V, dtype="float32")
RNG = np.random.default_rng(0)


def random(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def attended(cache, num_new):
    """Keys that the last tokens of each beam attend to through this cache."""
    rows = len(cache.length) * cache.num_beams
    positions = cache.next_positions(num_new) - num_new
    return run(KVCache.inputs, cache, np.zeros((rows, num_new, H, K), np.float32), positions)


def appended(cache, key, value):
    return run(KVCache.append, cache, key, value)


def test_rows_grow_from_their_own_length():
    cache = KVCache.empty(CONFIG, rows=2, max_length=4).replace(length=jnp.array([0, 2]))
    assert cache.keys.shape == (2, H, 4, 1, K) and cache.values.shape == (2, H, 4, 1, V)
    np.testing.assert_array_equal(cache.next_positions(2), [[0, 1], [2, 3]])

    key, value = random(2, 2, H, K), random(2, 2, H, V)
    grown = appended(cache, key, value)
    np.testing.assert_array_equal(grown.length, [2, 4])
    inputs = attended(grown, 2)
    np.testing.assert_array_equal(inputs.key_positions, [[0, 1, 2, 3]] * 2)
    np.testing.assert_array_equal(inputs.query_positions, [[0, 1], [2, 3]])
    np.testing.assert_array_equal(
        inputs.mask[:, 0].astype(int), [[[1, 0, 0, 0], [1, 1, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 1]]]
    )
    for slots, new in zip((inputs.key, inputs.value), (key, value), strict=True):
        np.testing.assert_array_equal(slots[0, :2], new[0])
        np.testing.assert_array_equal(slots[1, 2:], new[1])
        assert not slots[0, 2:].any() and not slots[1, :2].any()


@pytest.mark.parametrize(("device", "dtype"), [("cpu", jnp.float32), ("gpu", jnp.bfloat16)])
def test_keys_and_values_come_back_by_position_in_the_dtype_of_products(
    device, dtype, compiling_for
):
    compiling_for(device)
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    key, value = random(2, 3, H, K), random(2, 3, H, V)
    written = appended(KVCache.empty(config, rows=2, max_length=3), key, value)
    memory = Memory.of(key, value, np.ones((2, 1, 1, 3), bool)).cast(config)
    assert memory.keys.shape == (2, H, 3, K) and memory.values.shape == (2, H, 3, V)
    for kept in (attended(written, 1), memory.inputs(random(2, 1, H, K))):
        for found, new in zip((kept.key, kept.value), (key, value), strict=True):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, new.astype(dtype))


@pytest.mark.parametrize(
    ("heads", "beams", "dtype"), [(H, 1, jnp.float32), (H, 3, jnp.bfloat16), (1, 1, jnp.bfloat16)]
)
def test_on_a_cpu_several_queries_of_a_key_are_multiplied_in_bfloat16(
    heads, beams, dtype, compiling_for
):
    compiling_for("cpu")
    config = dataclasses.replace(CONFIG, dtype="bfloat16", num_key_value_heads=heads)
    key, value = random(2, 3, heads, K), random(2, 3, heads, V)
    cache = appended(KVCache.empty(config, rows=2, max_length=4), key, value)
    cache = run(KVCache.reorder, cache, np.zeros((2, beams), int))
    new_key, new_value = random(2 * beams, 1, heads, K), random(2 * beams, 1, heads, V)
    inputs = attended(appended(cache, new_key, new_value), 1)
    assert inputs.key.dtype == inputs.value.dtype == dtype
    for found, old, new in ((inputs.key, key, new_key), (inputs.value, value, new_value)):
        of_beams = found.reshape(2, 4, beams, *found.shape[2:])
        np.testing.assert_array_equal(of_beams[:, :3, 0], old.astype(dtype))
        np.testing.assert_array_equal(
            of_beams[:, 3].reshape(new[:, 0].shape), new[:, 0].astype(dtype)
        )


@pytest.mark.parametrize("beams", [1, 4])
def test_state_bytes_are_those_after_the_beams_are_added(beams, compiling_for):
    compiling_for("cpu")
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    plain = jnp.zeros((2, 5), jnp.int32)
    cache = KVCache.empty(config, rows=2, max_length=6)
    number_bytes = 4 if beams == 1 else 2
    entries = 2 * beams * 6 * H * (K + V)
    origins, lengths, others = 2 * beams * 6, 2, 2 * beams * 5
    expected = number_bytes * entries + 4 * (origins + lengths + others)
    assert state_bytes((cache, plain), beams) == expected


def test_a_beam_sees_the_past_of_its_parent():
    sentences, beams, prompts = 2, 3, [1, 2]
    key, value = random(sentences, 2, H, K), random(sentences, 2, H, V)
    cache = appended(KVCache.empty(CONFIG, sentences, max_length=7), key, value)
    cache = cache.replace(length=jnp.array(prompts))
    pasts = [[list(zip(key[b, :n], value[b, :n], strict=True))] for b, n in enumerate(prompts)]

    for step in range(4):
        parents = RNG.integers(beams if step else 1, size=(sentences, beams))
        cache = run(KVCache.reorder, cache, parents)
        key, value = random(sentences * beams, 1, H, K), random(sentences * beams, 1, H, V)
        positions = cache.next_positions(1).reshape(sentences, beams)
        cache = appended(cache, key, value)
        new = [list(zip(key[:, 0], value[:, 0], strict=True))[b * beams :] for b in range(2)]
        pasts = [
            [[*past[parent], new[b][k]] for k, parent in enumerate(parents[b])]
            for b, past in enumerate(pasts)
        ]
        inputs = attended(cache, 1)
        for b, k in np.ndindex(sentences, beams):
            seen = np.flatnonzero(inputs.mask[b, 0, k])
            np.testing.assert_array_equal(
                inputs.key_positions[b][seen], np.arange(len(pasts[b][k]))
            )
            np.testing.assert_array_equal(inputs.key[b][seen], [one for one, _ in pasts[b][k]])
            np.testing.assert_array_equal(inputs.value[b][seen], [one for _, one in pasts[b][k]])
            assert positions[b, k] == len(pasts[b][k]) - 1
    assert cache.num_beams == beams


# --- The last tokens ---


def windows(text, count):
    """What `look_back` returns for the numbers of a text, written out."""
    return [[text[i - j] if i >= j else 0 for i in range(len(text))] for j in range(count + 1)]


def test_recent_tokens_are_those_of_each_sentence_beam_and_draft():
    """Packed, and decoded: prompts of unequal lengths, a step of several tokens that is taken back,
    and beams, whose states cannot be taken back any more."""
    texts = [3.0, 1, 4, 1, 5], [9.0, 2]
    row, positions = np.array([[*texts[0], *texts[1]]]), np.array([[0, 1, 2, 3, 4, 0, 1]])
    packed, none = Sequences(None, positions, None).look_back(row, 3)
    expected = np.concatenate([windows(text, 3) for text in texts], axis=1)
    np.testing.assert_array_equal(np.stack(packed)[:, 0], expected)
    assert none is None

    def read(x, recent, start, real=None):
        positions = np.array(start)[:, None] + np.arange(np.shape(x)[1])
        found, recent = Sequences(None, positions, None, real=real).look_back(x, 3, recent)
        return np.stack(found)[..., -1], recent

    prompts = np.array([[3.0, 1, 4], [9, 0, 0]])
    real = np.array([[1, 1, 1], [1, 0, 0]], bool)
    _, recent = read(prompts, Recent.empty(2, 3, ()), [0, 0], real)
    _, drafted = read(np.array([[7.0, 8, 8], [7, 8, 8]]), recent, [3, 1])
    assert drafted.rewindable
    last, recent = read(np.array([[1.0], [2.0]]), drafted.rewind(jnp.array([3, 3])), [3, 1])
    np.testing.assert_array_equal(last.T, [[1, 4, 1, 3], [2, 9, 0, 0]])

    parents = recent.reorder(jnp.array([[0, 0], [0, 0]]))
    _, beams = read(np.array([[5.0], [6], [7], [8]]), parents, [4, 4, 2, 2])
    crossed = beams.reorder(jnp.array([[1, 0], [1, 1]]))
    last, _ = read(np.zeros((4, 1)), crossed, [5, 5, 3, 3])
    np.testing.assert_array_equal(last[1:, :].T, [[6, 1, 4], [5, 1, 4], [8, 2, 9], [8, 2, 9]])
    assert beams.values.shape == (2, 2, 3) and not beams.rewindable


def test_a_convolution_of_one_token_looks_back_at_none():
    recent = Recent.empty(2, 0, (3,), rewindable=False)
    x = random(2, 4, 3)
    values, recent = Sequences(None, np.tile(np.arange(4), (2, 1)), None).look_back(x, 0, recent)
    np.testing.assert_array_equal(values, x[None])
    assert recent.values.shape == (2, 1, 0, 3)


class WithState(KVCache):
    state: Any = None


def test_a_cache_rewinds_what_it_can():
    cache = KVCache.empty(CONFIG, 1, 4).with_per_key({"decay": (2,)})
    assert can_rewind(cache)
    fields = {field.name: getattr(cache, field.name) for field in dataclasses.fields(cache)}
    assert can_rewind(WithState(**fields, state=Recent.empty(1, 2, (3,))))
    stuck = WithState(**fields, state=jnp.zeros((1, 1, 3)))
    assert not can_rewind(stuck)
    assert stuck.reorder(jnp.zeros((1, 3), int)).state.shape == (1, 3, 3)


class Around(Cache):
    layer: Cache
    recent: Recent


def test_a_cache_may_hold_that_of_another_layer():
    layer = WithState.empty(CONFIG, 2, 4).replace(state=jnp.zeros((2, 1, 3)))
    around = Around(layer.length, layer, Recent.empty(2, 1, ()))
    assert around.num_beams == around.recent.num_beams == 1
    assert around.reorder(jnp.zeros((2, 3), int)).num_beams == 3
    lengths = jnp.array([1, 3])
    ended = around.ending_at(lengths)
    assert ended.layer.length is ended.length is lengths


def test_values_per_key_follow_their_keys():
    """A beam reads the values of its own past; the last one is that of its newest token."""

    def extended(cache, values, parents):
        zeros = (jnp.zeros((*values.shape, H, size)) for size in (K, V))
        return cache.append(*zeros, {"sum": values}).reorder(parents)

    def followed(empty, prompt, tokens):
        cache = extended(empty, prompt, jnp.array([[0, 0]]))
        cache = extended(cache, tokens, jnp.array([[1, 1]]))
        last = (each.last("sum") for each in (empty, cache, cache.ending_at(jnp.array([1]))))
        return cache, *last

    empty = KVCache.empty(CONFIG, 1, 4).with_per_key({"sum": ()})
    tokens = np.array([[1, 2]], np.float32), np.array([[3], [4]], np.float32)
    cache, *last = run(followed, empty, *tokens)
    assert [values.tolist() for values in last] == [[0], [4, 4], [1, 1]]
    inputs = attended(cache, 1)
    seen = np.where(inputs.mask[0, 0], inputs.per_key["sum"][0], 0).sum(1)
    np.testing.assert_array_equal(seen, [1 + 2 + 4] * 2)
    np.testing.assert_array_equal(inputs.sentence_mask, inputs.mask)

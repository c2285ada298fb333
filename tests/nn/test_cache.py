# SPDX-License-Identifier: Apache-2.0
"""The KV cache equals literal slots, and histories in plain lists."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from transformer_jax.nn.cache import KVCache, Memory, state_bytes
from transformer_jax.nn.config import TransformerConfig

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


def test_one_beam_is_its_own_parent():
    key, value = random(2, 2, H, K), random(2, 2, H, V)
    cache = KVCache.empty(CONFIG, rows=2, max_length=4).append(key, value)
    followed = cache.reorder(jnp.zeros((2, 1), int))
    jax.tree.map(np.testing.assert_array_equal, followed, cache)
    cache = cache.reorder(jnp.zeros((2, 3), int))
    assert cache.origins.shape == (2, 3, 4)
    x = random(6, 1, H, K)
    inputs = cache.inputs(x, cache.next_positions(1))
    np.testing.assert_array_equal(inputs.query, x.reshape(2, 3, H, K))

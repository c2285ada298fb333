# SPDX-License-Identifier: Apache-2.0
"""Order of examples: shuffled epochs, shards, and random numbers by index."""

import itertools

import grain
import numpy as np
import pytest

from transformer_jax.data.batches.order import (
    EpochOrder,
    MixedOrder,
    OrderedFeatures,
    endless_order,
)
from transformer_jax.data.examples import Corpora


def drawn(example, rng):
    return {"tokens": np.array([example, rng.integers(1 << 60), rng.random() * 1e9, *rng.bytes(3)])}


def placed(example, rng):
    return {"tokens": np.array([example, rng.place])}


def numbers(examples, count):
    return np.stack([examples[index]["tokens"] for index in range(count)])


def test_random_numbers_are_those_of_grain_for_the_same_seed_and_index():
    order = [3, 1, 2, 0, 3]
    grains = grain.MapDataset.source(order).random_map(drawn, seed=5)
    ours = OrderedFeatures(range(4), order, drawn, seed=5)
    np.testing.assert_array_equal(numbers(ours, 5), numbers(grains, 5))
    np.testing.assert_array_equal(ours[2]["tokens"], grains[2]["tokens"])  # in any order


def test_shards_have_the_items_and_random_numbers_of_the_whole_sequence():
    whole = OrderedFeatures(range(10, 20), range(10), drawn, seed=1)
    shards = [whole.shard(i, 4) for i in range(4)]
    assert [len(shard) for shard in shards] == [3, 3, 2, 2]
    np.testing.assert_array_equal(numbers(whole, 10)[1::4], numbers(shards[1], 3))
    np.testing.assert_array_equal(numbers(whole, 10)[5::8], numbers(shards[1].shard(1, 2), 1))


def test_the_generator_of_an_item_knows_its_place_in_the_order():
    shard = OrderedFeatures([7, 8, 9], EpochOrder(0, 3, seed=1), placed, seed=1).shard(1, 4)
    assert [shard[i]["tokens"][1] for i in (2, 0)] == [9, 1]


def epochs(size, seed, count=3):
    examples = EpochOrder(0, size, seed)
    return np.array([examples[index] for index in range(size * count)]).reshape(count, size)


def test_orders_depend_on_seed_and_epoch_alone():
    orders = epochs(20, seed=1)
    examples = EpochOrder(0, 20, seed=1)
    assert examples[45] == orders[2, 5] and examples[3] == orders[0, 3]  # in any order of access
    assert (orders != epochs(20, seed=2)).any()


def test_equal_corpora_of_a_mixture_have_orders_of_their_own():
    """Such as both directions of the same pairs, which would be next to each other."""
    size = 2048  # whole blocks of places
    corpora = Corpora((range(size), range(size)), weights=(1.0, 1.0))
    numbers = endless_order(corpora, seed=1).at(np.arange(2 * size))
    places = np.argsort(numbers)
    distances = np.abs(places[:size] - places[size:])
    # Of two places in 2 * size at random.
    assert np.mean(distances < size / 4) == pytest.approx(1 - (1 - 1 / 8) ** 2, abs=0.04)


@pytest.mark.parametrize(
    "weights", [(1.0, 1.0), (1.0, 3.0), (0.2, 5.0, 1.0), (1e-6, 1.0), (1.0,) * 40]
)
@pytest.mark.parametrize("step", [1, 2, 8])
def test_every_stream_of_a_mixture_has_the_stated_shares(weights, step):
    sizes = [30 * (i + 1) for i in range(len(weights))]
    starts = np.cumsum([0, *sizes])
    orders = [EpochOrder(*part, 7) for part in itertools.pairwise(starts.tolist())]
    mixed = MixedOrder(orders, weights, seed=7)
    indices = 3 + np.arange(20_000) * step
    numbers = mixed.at(indices)
    assert numbers[:50].tolist() == [mixed[index] for index in indices[:50].tolist()]
    parts = np.searchsorted(starts, numbers, side="right") - 1
    shares = np.bincount(parts, minlength=len(weights)) / len(numbers)
    np.testing.assert_allclose(shares, np.divide(weights, sum(weights)), atol=0.01)
    if step == 1:  # in epochs: equally often, but for the first and the last
        counts = np.bincount(numbers[parts == len(weights) - 1] - starts[-2])
        assert counts.max() - counts.min() <= 2

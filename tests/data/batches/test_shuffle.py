import time

import numpy as np
import pytest

from transformer_jax.data.batches.shuffle import EpochOrder


def epochs(size, seed, count=3):
    examples = EpochOrder(0, size, seed)
    return np.array([examples[place] for place in range(size * count)]).reshape(count, size)


def test_each_epoch_is_another_permutation():
    orders = epochs(100, seed=1)
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(100), [3, 1]))
    assert len({tuple(order) for order in [*orders, np.arange(100)]}) == 4


def test_orders_depend_on_seed_and_epoch_alone():
    orders = epochs(20, seed=1)
    examples = EpochOrder(0, 20, seed=1)
    assert examples[45] == orders[2, 5] and examples[3] == orders[0, 3]  # in any order of access
    assert (orders != epochs(20, seed=2)).any()


def test_an_order_may_begin_behind_others():
    behind = EpochOrder(7, 27, seed=1)
    np.testing.assert_array_equal([behind[i] for i in range(60)], epochs(20, seed=1).ravel() + 7)


@pytest.mark.parametrize("size", [1, 2, 10])
def test_small_sets_are_shuffled_at_once(size):
    start = time.process_time()
    epochs(size, seed=0, count=200 // size)
    assert time.process_time() - start < 0.2

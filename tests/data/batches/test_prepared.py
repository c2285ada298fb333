import grain
import numpy as np

from transformer_jax.data.batches.prepared import Prepared


def drawn(example, rng):
    return {"tokens": np.array([example, rng.integers(1 << 60), rng.random() * 1e9, *rng.bytes(3)])}


def numbers(examples, count):
    return np.stack([examples[place]["tokens"] for place in range(count)])


def test_draws_are_those_of_grain_by_seed_and_place():
    order = [3, 1, 2, 0, 3]
    grains = grain.MapDataset.source(order).random_map(drawn, seed=5)
    ours = Prepared(range(4), order, drawn, seed=5)
    np.testing.assert_array_equal(numbers(ours, 5), numbers(grains, 5))
    np.testing.assert_array_equal(ours[2]["tokens"], grains[2]["tokens"])  # in any order


def test_hands_share_the_sequence_in_turn_and_draw_as_the_whole():
    whole = Prepared(range(10, 20), range(10), drawn, seed=1)
    hands = [whole.dealt(i, 4) for i in range(4)]
    assert [len(hand) for hand in hands] == [3, 3, 2, 2]
    np.testing.assert_array_equal(numbers(whole, 10)[1::4], numbers(hands[1], 3))
    np.testing.assert_array_equal(numbers(whole, 10)[5::8], numbers(hands[1].dealt(1, 2), 1))

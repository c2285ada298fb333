# SPDX-License-Identifier: Apache-2.0
"""Batches of training and evaluation: all examples once per epoch, for any division of the work."""

import functools
import itertools
import json
import operator

import numpy as np
import pytest

from tests.refusals import assert_refused
from transformer_jax.data.batches.pipeline import (
    BatchIterator,
    describe_overlong,
    eval_batches,
    train_batches,
)
from transformer_jax.data.batches.windows import Windows, find_slices
from transformer_jax.data.examples import Corpora

LENGTHS = {"source": 16, "target": 12}
ROWS = 3


class Pairs:
    """Examples with up to 9 tokens on each side; the first token of example i is i + 1."""

    def __init__(self, count, overlong=()):
        self.count, self.overlong = count, set(overlong)

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        source, target = 1 + i * 7 % 9, 1 + i * 5 % 8
        return i + 1, source, LENGTHS["target"] + 1 if i in self.overlong else target


def tokens(example, rng):
    first, source, target = example
    return {
        "source": np.full(source, first, np.int32),
        "target": np.arange(first, first + target, dtype=np.int32),
    }


def noisy(example, rng):
    features = tokens(example, rng)
    return {**features, "source": features["source"] + 1000 * rng.integers(1000)}


def train(source, preprocess=tokens, **options):
    options = {"lengths": LENGTHS, "rows": ROWS, "seed": 1, **options}
    return train_batches(source, preprocess, **options)


def pairs_in(batch):
    """Examples of a batch, recovered by their segment ids."""
    for row in range(len(batch["source"])):
        segments = batch["source_segment_ids"][row]
        assert set(segments) - {0} == set(batch["target_segment_ids"][row]) - {0}
        for segment in range(1, segments.max() + 1):
            example = {}
            for feature in LENGTHS:
                mine = batch[f"{feature}_segment_ids"][row] == segment
                example[feature] = batch[feature][row][mine]
                positions = batch[f"{feature}_positions"][row][mine]
                np.testing.assert_array_equal(positions, np.arange(mine.sum()))
            yield example


def indices_in(batches):
    return [int(pair["target"][0]) - 1 for batch in batches for pair in pairs_in(batch)]


def take_group(batches):
    """Batches of one group, whose examples are all that were counted as seen."""
    taken, seen = [next(batches)], batches.seen
    while True:
        before = batches.get_state()
        batch = next(batches)
        if batches.seen != seen:
            batches.set_state(before)
            return taken
        taken.append(batch)


def take_epochs(batches, size, epochs):
    """Indices of the examples in complete groups of batches, for at least `epochs` epochs."""
    indices = []
    while len(indices) < size * epochs:
        indices += indices_in(take_group(batches))
    return indices


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for key in left:
        np.testing.assert_array_equal(left[key], right[key], err_msg=key)


def test_training_batches_contain_unchanged_examples():
    source = Pairs(50)
    for batch in itertools.islice(train(source), 20):
        for feature, length in LENGTHS.items():
            for suffix in ("", "_segment_ids", "_positions"):
                array = batch[feature + suffix]
                assert array.shape == (ROWS, length) and array.dtype == np.int32
        for pair in pairs_in(batch):
            example = source[int(pair["target"][0]) - 1]
            assert_equal(pair, tokens(example, None))


def test_each_epoch_has_every_example_once_in_a_new_order():
    size, epochs = 50, 6
    batches = train(Pairs(size))
    indices = take_epochs(batches, size, epochs)
    assert batches.seen == len(indices)
    counts = np.bincount(indices, minlength=size)
    assert counts.max() - counts.min() <= 1 and counts.min() == len(indices) // size
    first, second = indices[:size], indices[size : 2 * size]
    assert first != second and first != sorted(first)


@pytest.mark.parametrize("rows, streams", [(1, 1), (2, 2), (4, 4), (8, 8), (16, 8)])
def test_streams_share_the_examples(rows, streams):
    def quarter_row(example, rng):
        return {"source": np.full(4, example, np.int32), "target": np.full(3, example, np.int32)}

    # Equal lengths, so that all streams end their epochs with the same batch.
    size, group = 64, 128 * streams // rows  # examples; batches of one group of every stream
    batches = train(range(size), quarter_row, rows=rows)
    assert len(batches.get_state()) == streams
    taken = [next(batches)["target"][:, ::3] for _ in range(group)]  # [rows, 4] each
    counts = np.bincount(np.concatenate(taken, None), minlength=size)
    assert set(counts) == {group * rows * 4 // size}


@pytest.mark.parametrize("rows, count", [(8, 2), (8, 4), (12, 3), (16, 16), (3, 3), (2, 2)])
def test_processes_share_the_batches_of_a_single_process(rows, count):
    whole = train(Pairs(90), noisy, rows=rows)
    shares = [train(Pairs(90), noisy, rows=rows, shard=(i, count)) for i in range(count)]
    for _ in range(25):
        parts = [next(share) for share in shares]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        assert_equal(joined, next(whole))
    states = functools.reduce(operator.or_, [share.get_state() for share in shares])
    assert states == whole.get_state()


def test_the_digest_of_batches_tells_examples_and_orders_apart():
    class Altered(Pairs):
        def __getitem__(self, i):
            return super().__getitem__(i + (i == 89))

    sources = {"": Pairs(90), "altered": Altered(90)}
    batches = {name: train(source, rows=8) for name, source in sources.items()}
    batches |= {"same": train(Pairs(90), rows=8), "order": train(Pairs(90), rows=8, seed=2)}
    for _ in range(20):
        for name in batches:
            next(batches[name])
    streams = {name: batches[name].get_state().values() for name in batches}
    digests = {name: tuple(stream["digest"] for stream in streams[name]) for name in streams}
    assert digests["same"] == digests[""] and len({*digests.values()}) == 3


def test_order_and_noise_depend_on_the_seed():
    def some(seed, size=50):
        return list(itertools.islice(train(Pairs(size), noisy, seed=seed), 10))

    def noise(seed):
        pairs = [pair for batch in some(seed, size=1) for pair in pairs_in(batch)]
        return {int(pair["source"][0]) for pair in pairs}

    for left, right in zip(some(1), some(1), strict=True):
        assert_equal(left, right)
    assert indices_in(some(1)) != indices_in(some(2))
    assert len(noise(1)) > 1  # new numbers in each epoch
    assert len(noise(1) & noise(2)) < len(noise(1)) / 2  # of 1000 values


@pytest.mark.parametrize("cut", [0, 1, 2, 4, 5, 7, 8, 19])
def test_training_resumes_exactly_after_any_batch(cut):
    source = Pairs(30, overlong=[3, 4])  # 19 batches are several epochs
    batches = train(source, noisy)
    for _ in range(cut):
        next(batches)
    state, counts = json.dumps(batches.get_state()), (batches.seen, batches.overlong)
    expected = list(itertools.islice(batches, 12))

    resumed = train(source, noisy)
    next(resumed)  # so that there are prefetched batches to drop
    resumed.set_state(json.loads(state))
    assert (resumed.seen, resumed.overlong) == counts
    assert json.dumps(resumed.get_state()) == state
    for left, right in zip(expected, resumed, strict=False):
        assert_equal(left, right)
        if left is expected[-1]:
            break
    assert resumed.get_state() == batches.get_state()


def unchanged(example, rng):
    return example


@pytest.mark.parametrize(
    "divisions",
    [[{"num_workers": 2}], [{"shard": (0, 2)}, {"shard": (1, 2), "num_workers": 1}]],
    ids=str,
)
def test_a_mixture_of_slices_resumes_within_a_group_for_any_division(divisions):
    parts = tuple(Windows(np.arange(size, dtype=np.int32), 8, 8) for size in (90, 400))
    items = Corpora(parts, weights=(3, 1))
    options = {
        "lengths": {"input": 12, "target": 12},
        "rows": 8,
        "slices": find_slices(items, lambda part: part.slices),
    }
    whole = train(items, unchanged, **options)
    before = [next(whole) for _ in range(140)]
    state = json.loads(json.dumps(whole.get_state()))
    assert any(0 < stream["handed_out"] < 128 for stream in state.values())
    expected = [next(whole) for _ in range(20)]
    by_example = train(items, unchanged, **options | {"slices": None})
    for batch in before + expected:
        assert_equal(batch, next(by_example))
    shares = [train(items, unchanged, **options, **division) for division in divisions]
    for share in shares:
        share.set_state(state)
    for batch in expected:
        rows = [next(share) for share in shares]
        assert_equal(batch, {name: np.concatenate([part[name] for part in rows]) for name in batch})
    for share in shares:
        share.close()


def test_a_group_that_failed_to_be_divided_is_packed_again(monkeypatch):
    batches, expected = train(Pairs(50)), train(Pairs(50))
    with monkeypatch.context() as patched:  # as if memory were short
        patched.setattr(BatchIterator, "_split_groups", lambda streams, groups: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            next(batches)
    assert_equal(next(batches), next(expected))
    assert batches.get_state() == expected.get_state()


def test_starting_early_does_not_change_the_batches():
    started, resumed, plain = train(Pairs(50)), train(Pairs(50)), train(Pairs(50))
    started.start()
    assert started.seen == 0
    assert_equal(next(started), next(plain))
    resumed.set_state(plain.get_state())
    resumed.start()
    assert_equal(next(resumed), next(plain))


def test_overlong_examples_are_left_out_and_counted():
    size, overlong = 40, [0, 7, 39]
    batches = train(Pairs(size, overlong))
    assert (batches.seen, batches.overlong) == (0, 0)
    packed = take_epochs(batches, size, 4)
    assert not set(packed) & set(overlong)
    assert batches.seen == len(packed) + batches.overlong
    epochs = batches.seen / size
    assert len(overlong) * int(epochs) <= batches.overlong <= len(overlong) * (int(epochs) + 1)


def test_one_example_that_fits_is_enough():
    batch = next(train(Pairs(3, overlong=[0, 1])))
    assert set(indices_in([batch])) == {2}


def test_sources_and_rows_of_which_no_batch_can_be_made_are_refused():
    def evaluate(source):
        return eval_batches(source, tokens, lengths=LENGTHS, rows=ROWS)

    overlong = Pairs(20, overlong=range(20))
    assert_refused(
        {
            "each of the 20 examples is longer": lambda: next(train(overlong)),
            "(in tokens: source 16, target 12)": lambda: evaluate(overlong),
            "no training examples: the source is empty": lambda: train(Pairs(0)),
            "no examples to evaluate": lambda: evaluate(Pairs(0)),
            "8 rows cannot be shared equally by 3 processes": lambda: train(
                Pairs(50), rows=8, shard=(0, 3)
            ),
        }
    )


def test_rows_have_little_padding_in_all_batches():
    rng = np.random.default_rng(0)
    source = np.clip(rng.lognormal(2.6, 0.45, 3000), 2, 64).astype(int)

    def ones(n, rng):
        return {"tokens": np.ones(n, np.int32)}

    batches = train_batches(source, ones, lengths={"tokens": 64}, rows=64, seed=0)
    fills = [(batch["tokens_segment_ids"] > 0).mean() for batch in itertools.islice(batches, 8)]
    assert min(fills) > 0.965 and max(fills) - min(fills) < 0.015


def test_evaluation_has_each_example_once_in_order_in_batches_of_one_shape():
    overlong = [2, 48, 49]
    batches = eval_batches(Pairs(50, overlong), tokens, lengths=LENGTHS, rows=ROWS)
    assert batches.overlong == 3
    assert len(batches) > 3
    kept = [i for i in range(50) if i not in overlong]
    assert sorted(indices_in(batches)) == kept
    by_batch = [sorted(indices_in([batch])) for batch in batches]
    assert sum(by_batch, []) == kept
    for batch in batches:
        for key, array in batch.items():
            assert array.shape == (ROWS, LENGTHS[key.split("_")[0]])


def test_evaluations_draw_the_same_noise():
    def batches():
        return eval_batches(Pairs(30), noisy, lengths=LENGTHS, rows=ROWS)

    for left, right in zip(batches(), batches(), strict=True):
        assert_equal(left, right)
    sources = [int(pair["source"][0]) // 1000 for pair in pairs_in(batches()[0])]
    assert len(set(sources)) > 1


def test_what_is_longer_than_a_row_is_described():
    lengths = {"source": 4, "target": 8}

    def preprocess(item, rng):
        return dict(
            zip(("source", "target"), (np.ones(size, np.int32) for size in item), strict=True)
        )

    longer = "of the examples are longer than a row and are left out"
    items = [(2, 3)] * 90 + [(9, 3)] * 10
    assert describe_overlong(items, preprocess, lengths) == (
        f"10.0% {longer}; 99% fit with data.max_source_length=9 (now 4)"
    )
    few = [(2, 3)] * 990 + [(9, 3)] * 2
    assert describe_overlong(few, preprocess, lengths) == f"0.2% {longer}"
    apart = few + [(7, 3)] * 4 + [(2, 9)] * 8  # 99.6% and 99.2% of the sides are shorter
    assert describe_overlong(apart, preprocess, lengths) == (
        f"1.4% {longer}; 99% fit with data.max_source_length=7 (now 4) and "
        "data.max_target_length=9 (now 8)"
    )
    assert describe_overlong(items, preprocess, {"source": 9, "target": 8}) is None
    text = lambda item, rng: {"text": np.ones(item[0], np.int32)}  # noqa: E731
    assert describe_overlong(items, text, {"text": 4}).endswith("left out; raise data.max_length")


def test_features_without_random_numbers_are_made_once():
    def counted(preprocess, num_batches=40):
        visited = []

        def visit(example, rng):
            visited.append(example[0])
            return preprocess(example, rng)

        batches = train(Pairs(20), visit, rows=8)
        for batch in itertools.islice(batches, num_batches):
            if preprocess is tokens:
                for pair in pairs_in(batch):
                    assert_equal(pair, tokens(Pairs(20)[int(pair["target"][0]) - 1], None))
        batches.close()
        return visited

    assert sorted(counted(tokens)) == list(range(1, 21))
    assert len(counted(noisy)) > 100

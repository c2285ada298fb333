"""Rows become batches of one size, and their results come back in order."""

import numpy as np
import pytest

from transformer_jax.inference.batches import FilledBatch, in_batches


def test_a_batch_is_filled_up_and_the_filling_taken_off():
    sizes = []

    def program(params, arrays):
        sizes.append(len(arrays["x"]))
        return {"sum": arrays["x"] + params}

    batch = FilledBatch(-1, lambda rows: {"x": np.array(rows)})
    assert batch.place(10, [1, 2], 4)["x"].tolist() == [1, 2, -1, -1]
    assert batch.run(program, 10, [1, 2, 3], 4)["sum"].tolist() == [11, 12, 13]
    assert sizes == [4]


@pytest.mark.parametrize(
    "length, expected",
    [(None, [["ccc", "a"], ["bb", "d"]]), (len, [["a", "d"], ["bb", "ccc"]])],
)
def test_items_of_like_length_share_a_batch(length, expected):
    batches = []

    def run(items):
        batches.append(list(items))
        return (item.upper() for item in items)

    assert in_batches(["ccc", "a", "bb", "d"], 2, run, length) == ["CCC", "A", "BB", "D"]
    assert batches == expected

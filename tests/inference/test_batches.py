# SPDX-License-Identifier: Apache-2.0
"""Batches are padded to one size, and padding rows are removed from results."""

import numpy as np

from transformer_jax.inference.batches import PaddedBatch


def test_a_batch_is_padded_and_unpadded():
    sizes = []

    def program(params, arrays):
        sizes.append(len(arrays["x"]))
        return {"sum": arrays["x"] + params}

    batch = PaddedBatch(-1, lambda rows: {"x": np.array(rows)})
    assert batch.place(10, [1, 2], 4)["x"].tolist() == [1, 2, -1, -1]
    assert batch.run(program, 10, [1, 2, 3], 4)["sum"].tolist() == [11, 12, 13]
    assert sizes == [4]

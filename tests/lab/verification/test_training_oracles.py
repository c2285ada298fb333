# SPDX-License-Identifier: Apache-2.0
"""Each oracle of training finds its fault, and nothing in a right model."""

from functools import partial

import pytest

from transformer_jax.lab.verification.outcomes import BITS, DoesNotApplyError
from transformer_jax.lab.verification.training_oracles import (
    accumulated,
    rematerialized,
    repeated,
    resumed,
    scanned,
    seeds,
)

full = partial(rematerialized, remat="full")
TWO_LAYERS = {"model.num_layers": 2}
WRONG = [
    (accumulated, {"task.name": "mean_loss"}, 0.1),
    (scanned, TWO_LAYERS | {"model.architecture": "numbered"}, 0.1),
    (full, {"model.activation": "own_noise"}, 1e-3),
    (repeated, {"model.activation": "counted"}, BITS),
    (resumed, {"optimizer.name": "hidden_momentum"}, BITS),
    (seeds, {"model.norm": "drawn"}, 0.01),
]
NAMES = ["accumulated", "scanned", "remat", "repeated", "resumed", "seeds"]


@pytest.mark.parametrize(("oracle", "changes", "least"), WRONG, ids=NAMES)
def test_finds_the_fault(subject_of, oracle, changes, least):
    found = oracle(subject_of(changes))
    assert not found.is_equal and found.relative > least


@pytest.mark.parametrize("oracle", [accumulated, scanned, full, resumed, seeds])
def test_a_right_model_passes(right, oracle):
    assert oracle(right).is_equal


def test_remat_does_not_apply_to_a_recurrent_network(subject_of, monkeypatch):
    monkeypatch.setattr("transformer_jax.nn.transformer._LAYERS", ())
    with pytest.raises(DoesNotApplyError, match=r"no layer .* train\.remat"):
        full(subject_of())

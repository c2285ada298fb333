# SPDX-License-Identifier: Apache-2.0
"""Each oracle of training finds its fault, and nothing in a right model."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from transformer_jax.lab.verification.oracles import DEVICE_ORACLES
from transformer_jax.lab.verification.outcomes import (
    BITS,
    DIFFERS,
    DOES_NOT_APPLY,
    EQUAL,
    DoesNotApplyError,
)
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
    monkeypatch.setattr("transformer_jax.nn.transformer.Block", NotImplementedError)
    with pytest.raises(DoesNotApplyError, match=r"no layer .* train\.remat"):
        full(subject_of())


PROGRAM = Path(__file__).with_name("two_devices.py")


@pytest.fixture(scope="module")
def outcomes():
    """{run: {oracle: outcome}} of `two_devices.py`."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, PROGRAM], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("oracle", DEVICE_ORACLES)
def test_a_right_model_is_equal_on_every_axis(outcomes, oracle):
    """Biases that are learned travel around the ring of a divided sequence."""
    right = "learned biases" if oracle == "sequence axis = one device" else "right"
    found = outcomes[right][oracle]
    assert found["verdict"] == EQUAL and found["relative"] > 0  # other programs round otherwise


def test_means_over_the_rows_of_a_device_are_found(outcomes):
    found = outcomes["batch norm"]
    assert found["pmap = one device"]["verdict"] == DIFFERS
    assert found["data axis = one device"]["verdict"] == EQUAL  # there XLA has all rows


def test_an_axis_that_does_not_divide_the_model_does_not_apply(outcomes):
    found = outcomes["odd heads"]["tensor axis = one device"]
    assert found["verdict"] == DOES_NOT_APPLY and "tensor 2 does not divide" in found["reason"]

# SPDX-License-Identifier: Apache-2.0
"""Each oracle of training, data and weights finds its fault, and nothing in a right model."""

import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from transformer_jax.errors import UserError
from transformer_jax.interop import weights
from transformer_jax.lab.verification import training_oracles
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
    randomness,
    rematerialized,
    repeated,
    resumed,
    scanned,
    seeds,
)
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.tasks import TASKS

full = partial(rematerialized, remat="full")
TWO_LAYERS = {"model.num_layers": 2}
WRONG = {
    "accumulated": (accumulated, {"task.name": "mean_loss"}, 0.1),
    "scanned": (scanned, TWO_LAYERS | {"model.architecture": "numbered"}, 0.1),
    "remat": (full, {"model.activation": "own_noise"}, 1e-3),
    "repeated": (repeated, {"model.activation": "counted"}, BITS),
    "resumed": (resumed, {"optimizer.name": "hidden_momentum"}, BITS),
    "seeds": (seeds, {"model.norm": "drawn"}, 0.01),
}


@pytest.mark.parametrize("name", WRONG)
def test_finds_the_fault(subject_of, right, name):
    oracle, changes, least = WRONG[name]
    found = oracle(subject_of(changes, right if name in ("accumulated", "remat") else None))
    assert not found.is_equal and found.relative > least


@pytest.mark.parametrize("oracle", [accumulated, scanned, full, resumed, seeds])
def test_a_right_model_passes(right, oracle):
    assert oracle(right).is_equal


def test_what_draws_nothing_is_not_asked_for_its_keys(right):
    with pytest.raises(DoesNotApplyError, match="draws nothing by itself"):
        randomness(right)


def test_what_a_component_declares_is_not_asked(subject_of, monkeypatch, with_entries):
    kind = dataclasses.replace(TASKS["language_modeling"], batch_dependent=True)
    with_entries(TASKS, {"language_modeling": kind})
    monkeypatch.setattr(DecoderOnly, "scannable", False, raising=False)
    for oracle, words in ((accumulated, "depends on the batch"), (scanned, "cannot be scanned")):
        with pytest.raises(DoesNotApplyError, match=words):
            oracle(subject_of())


def test_remat_does_not_apply_to_a_recurrent_network(subject_of, monkeypatch):
    of_no_model = type("Block", (), {})
    monkeypatch.setattr("transformer_jax.nn.transformer.Block", of_no_model)
    with pytest.raises(DoesNotApplyError, match=r"no layer .* train\.remat"):
        full(subject_of())


def test_an_exporter_that_changes_weights_is_found(subject_of, monkeypatch):
    published = subject_of({"model.norm": "layer", "model.feed_forward_bias": True})
    assert training_oracles.exported(published).is_equal
    other = subject_of({"model.positions": "from_first"})  # of no published model
    with pytest.raises(UserError, match=r"config\.model\.positions is 'from_first'"):
        training_oracles.exported(other)
    whole = weights.to_tensors

    def rounded(*args):
        return {name: x.astype("float16").astype(x.dtype) for name, x in whole(*args).items()}

    monkeypatch.setattr(weights, "to_tensors", rounded)
    found = training_oracles.exported(published)
    assert not found.is_equal and found.where.startswith("most in ")


def test_examples_that_depend_on_what_was_read_are_found(subject_of, right):
    assert training_oracles.data(subject_of({"data.name": "lines"})).is_equal
    with pytest.raises(DoesNotApplyError, match="neither data.name nor task.name"):
        training_oracles.data(right)
    found = training_oracles.data(subject_of({"data.name": "forgetful"}))
    assert not found.is_equal and found.where == "first at example 0"


def test_oracles_of_two_devices():
    """`two_devices.py` runs them."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    program = Path(__file__).with_name("two_devices.py")
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    for oracle in DEVICE_ORACLES:
        found = outcomes["right"][oracle]
        assert found["verdict"] == EQUAL, (oracle, found)
        assert found["relative"] > 0  # other programs round otherwise
    # Means over the rows of a device are found.
    found = outcomes["batch norm"]
    assert found["pmap = one device"]["verdict"] == DIFFERS
    assert found["data axis = one device"]["verdict"] == EQUAL  # there XLA has all rows
    # An axis that does not divide the model does not apply.
    found = outcomes["odd heads"]["tensor axis = one device"]
    assert found["verdict"] == DOES_NOT_APPLY and "tensor 2 does not divide" in found["reason"]

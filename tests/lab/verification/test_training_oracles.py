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
from transformer_jax.lab.verification import training_oracles as oracles
from transformer_jax.lab.verification.outcomes import BITS, DoesNotApplyError
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.tasks import TASKS

full = partial(oracles.rematerialized, remat="full")
WRONG = {
    "accumulated": (oracles.accumulated, {"task.name": "mean_loss"}, 0.1),
    "scanned": (oracles.scanned, {"model.num_layers": 2, "model.architecture": "numbered"}, 0.1),
    "remat": (full, {"model.activation": "own_noise"}, 1e-3),
    "repeated": (oracles.repeated, {"model.activation": "counted"}, BITS),
    "resumed": (oracles.resumed, {"optimizer.name": "hidden_momentum"}, BITS),
    "seeds": (oracles.seeds, {"model.norm": "drawn"}, 0.01),
}


@pytest.mark.parametrize("name", WRONG)
def test_finds_the_fault(subject_of, right, name):
    oracle, changes, least = WRONG[name]
    found = oracle(subject_of(changes, right if name in ("accumulated", "remat") else None))
    assert not found.is_equal and found.relative > least


@pytest.mark.parametrize(
    "oracle", [oracles.accumulated, oracles.scanned, full, oracles.resumed, oracles.seeds]
)
def test_a_right_model_passes(right, oracle):
    assert oracle(right).is_equal


def test_oracles_that_do_not_apply_say_why(subject_of, right, monkeypatch, with_entries):
    kind = dataclasses.replace(TASKS["language_modeling"], batch_dependent=True)
    with_entries(TASKS, {"language_modeling": kind})
    monkeypatch.setattr(DecoderOnly, "scannable", False, raising=False)
    declared = subject_of()
    of_no_model = type("Block", (), {})
    monkeypatch.setattr("transformer_jax.nn.transformer.Block", of_no_model)
    for oracle, subject, words in (
        (oracles.randomness, right, "draws nothing by itself"),
        (oracles.accumulated, declared, "depends on the batch"),
        (oracles.scanned, declared, "cannot be scanned"),
        (full, declared, r"no layer .* train\.remat"),
        (oracles.data, right, "neither data.name nor task.name"),
    ):
        with pytest.raises(DoesNotApplyError, match=words):
            oracle(subject)


def test_an_exporter_that_changes_weights_is_found(subject_of, monkeypatch):
    published = subject_of({"model.norm": "layer", "model.feed_forward_bias": True})
    assert oracles.exported(published).is_equal
    other = subject_of({"model.positions": "from_first"})  # of no published model
    with pytest.raises(UserError, match=r"config\.model\.positions is 'from_first'"):
        oracles.exported(other)
    whole = weights.to_tensors

    def rounded(*args):
        return {name: x.astype("float16").astype(x.dtype) for name, x in whole(*args).items()}

    monkeypatch.setattr(weights, "to_tensors", rounded)
    found = oracles.exported(published)
    assert not found.is_equal and found.where.startswith("most in ")


def test_examples_that_depend_on_what_was_read_are_found(subject_of):
    assert oracles.data(subject_of({"data.name": "lines"})).is_equal
    found = oracles.data(subject_of({"data.name": "forgetful"}))
    assert not found.is_equal and found.where == "first at example 0"


def test_oracles_of_two_devices():
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    env = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    program = Path(__file__).with_name("two_devices.py")
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    for oracle, found in outcomes["right"].items():
        assert found["verdict"] == "equal", (oracle, found)
        assert found["relative"] > 0  # other programs round otherwise
    # Means over the rows of a device are found.
    found = outcomes["batch norm"]
    assert found["pmap = one device"]["verdict"] == "differs"
    assert found["data axis = one device"]["verdict"] == "equal"  # there XLA has all rows
    # An axis that does not divide the model does not apply.
    found = outcomes["odd heads"]["tensor axis = one device"]
    assert found["verdict"] == "does not apply" and "tensor 2 does not divide" in found["reason"]

# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`, from command line to table."""

import json
import shutil
import sys

import pytest

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.lab.verification.outcomes import NOT_RUN
from transformer_jax.lab.verification.verify import ALL

WITH_FAULT = "--config.model.activation=token_shift"


def test_the_verb_finds_a_fault_and_nothing_else(flags, capfd):
    only = "--only=packed|causal|exported|another"
    assert main(["verify", *flags, WITH_FAULT, "--format=json", only]) == 1
    found = json.loads(capfd.readouterr().out)
    verdicts = {one["oracle"]: one["verdict"] for one in found["outcomes"]}
    assert verdicts == {
        "packed = padded": "differs",
        "causal": "equal",
        "exported = imported": "does not apply",
        "another process = the same": "equal",
    }
    assert found["subject"] == "model.activation=token_shift" and not found["proven"]


def test_what_has_not_ended_in_time_is_not_equal(small_config, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("cat"))  # it would end in no time
    found = tj.verify(small_config, seconds=0)
    assert [one.oracle for one in found.outcomes] == list(ALL) and not found.is_proven
    assert {one.verdict for one in found.outcomes} == {NOT_RUN}
    assert found["causal"].reason == "the time limit of 0 s was over"


def test_a_component_of_a_cell_without_source_is_an_error(small_config, monkeypatch):
    monkeypatch.setitem(small_config.model, "activation", "token_shift")
    registry = sys.modules["transformer_jax.nn.feed_forward"].ACTIVATIONS
    in_cell = registry._entries["token_shift"]._replace(module="__main__")
    monkeypatch.setitem(registry._entries, "token_shift", in_cell)
    with pytest.raises(tj.UserError, match="'token_shift' is not found in this notebook's cells"):
        tj.verify(small_config)


def test_no_oracle_of_a_name_is_an_error(flags, capsys):
    assert main(["verify", *flags, "--only=nothing"]) == 2
    assert "no oracle is named like 'nothing'; they are packed = padded" in capsys.readouterr().err


def test_a_component_is_verified_in_a_shipped_config(small_config, flags, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("cat"))
    component = sys.modules["transformer_jax.models"].MODELS["numbered"]
    found = tj.verify(component, modules=flags[1].removeprefix("--modules="), seconds=0)
    assert found.subject == "model.architecture=numbered" and len(found.outcomes) == len(ALL)
    with pytest.raises(tj.UserError, match="neither a config nor registered"):
        tj.verify(abs)

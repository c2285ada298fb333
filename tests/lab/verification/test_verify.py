# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`, from command line to table, and components of a notebook's cells."""

import json
import re
import shutil
import sys

import pytest

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.lab.verification.oracles import OF_MODEL
from transformer_jax.lab.verification.outcomes import NOT_RUN
from transformer_jax.models import MODELS
from transformer_jax.nn.parameters import PARAMETERS

CELL = """
import flax.linen as nn
import jax
import jax.numpy as jnp
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.parameters import PARAMETERS, Parameter

SCALE = 2
PARAMETERS.append(Parameter("norm(_before)?/gain", "scale", ("model",)))

@jax.jit
def later(x):
    return jnp.sin(SCALE * x)

@ACTIVATIONS.register("of_a_cell")
def twice(x):
    return later(x)

@NORMS.register("norm_of_a_cell")
class Norm(nn.Module):
    epsilon: float

    @nn.compact
    def __call__(self, x):
        gain = self.param("gain", nn.initializers.ones, x.shape[-1:])
        return gain * x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + self.epsilon)
"""


def test_the_verb_finds_a_fault_and_what_no_oracle_read_is_not_proven(flags, capfd):
    faulty = ["--config.model.activation=token_shift", "--config.decode.search=of_batch"]
    only = "--only=packed|exported|tensor"
    assert main(["verify", *flags, *faulty, "--format=json", only]) == 1
    result = json.loads(capfd.readouterr().out)
    verdicts = {outcome["oracle"]: outcome["verdict"] for outcome in result["outcomes"]}
    assert verdicts == {
        "packed = padded": "differs",
        "exported = imported": "does not apply",
        "tensor axis = one device": "equal",
        "decode.search=of_batch": "not run",
    }
    components = "model.activation=token_shift, decode.search=of_batch"
    assert result["subject"] == components and not result["proven"]
    reader = "search: alone = in a batch"
    reason = f"none of the oracles that were asked for reads it; {reader} would"
    assert result["outcomes"][-1]["reason"] == reason
    search = "--config.decode.search=of_batch"
    assert main(["verify", *flags, search, "--format=json", "--only=metric|causal"]) == 1
    (outcome,) = json.loads(capfd.readouterr().out)["outcomes"]
    assert (outcome["oracle"], outcome["verdict"]) == ("decode.search=of_batch", "not run")
    assert outcome["reason"] == reason
    assert main(["verify", *flags, "--format=json", "--only=metric"]) == 1
    (outcome,) = json.loads(capfd.readouterr().out)["outcomes"]
    assert (outcome["oracle"], outcome["verdict"]) == ("the config", "not run")


def test_components_of_cells_are_verified_by_value(small_config, forget_modules, caplog):
    exec(CELL, {"__name__": "__main__"})
    small_config.model.activation = "of_a_cell"
    small_config.model.norm = "norm_of_a_cell"
    result = tj.verify(small_config, only="another")
    assert [outcome.verdict for outcome in result.outcomes] == ["equal"]
    assert "in the table of parameters" not in caplog.text
    assert result.subject == "model.activation=of_a_cell, model.norm=norm_of_a_cell"
    PARAMETERS.pop()
    source = CELL.replace("SCALE = 2", "import threading; SCALE = 2; lock = threading.Lock()")
    source = re.sub(r"PARAMETERS.append.*", "", source)
    source = source.replace("return later(x)", "return later(x) if lock else x")
    exec(source, {"__name__": "__main__"})
    with pytest.raises(tj.UserError, match="verify: of_a_cell, .* give modules=FILE"):
        tj.verify(small_config)  # it cannot be pickled
    assert "/gain [8] has no row in the table of parameters (and " in caplog.text


def test_a_process_that_does_not_end_well_proves_nothing(small_config, flags, capsys, monkeypatch):
    monkeypatch.setattr(sys, "executable", shutil.which("cat"))  # it would end in no time
    result = tj.verify(small_config, seconds=0)
    assert {outcome.oracle for outcome in result.outcomes} == {*OF_MODEL} and not result.is_proven
    assert {outcome.verdict for outcome in result.outcomes} == {NOT_RUN}
    assert result["causal"].reason == "the time limit of 0 s was over"
    reason = tj.verify(small_config)["causal"].reason
    assert reason.startswith("the process ended with status 1: ") and "cat" in reason
    # A component alone is verified in a shipped config.
    modules = flags[1].removeprefix("--modules=")
    result = tj.verify(MODELS["numbered"], modules=modules, seconds=0)
    assert result.subject == "model.architecture=numbered" and len(result.outcomes) == len(OF_MODEL)
    with pytest.raises(tj.UserError, match="neither a config nor registered"):
        tj.verify(abs)
    assert main(["verify", *flags, "--only=nothing"]) == 2
    assert "no oracle is named like 'nothing'; they are packed = padded" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""A night whose proposals are trained, from the command to its end."""

import json

from tests.lab.night.test_loop import propose, rate, run_here, write_night
from transformer_jax.cli.main import main
from transformer_jax.lab.night import jobs, loop
from transformer_jax.lab.night.loop import finish_night
from transformer_jax.lab.verification.outcomes import Verification


def test_a_night_of_trained_proposals(tiny_language_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "run_job", run_here)
    monkeypatch.setattr(jobs, "verify", lambda *_, **__: Verification("", []))
    steps = {"train.num_steps": 24, "eval.every_steps": 24, "checkpoint.every_steps": 24}
    base = tiny_language_model | steps | rate(1e-9)
    folder = write_night(tmp_path / "night", base=base, question="Faster?", finish_seeds=2)
    propose(folder, "fast", rate(0.5), 1)
    propose(folder, "longer", {"train.num_steps": 48}, 2)
    propose(folder, "same", {"train.remat": "full"}, 3)
    assert main(["night", str(folder)]) == 0
    fast, longer, same = map(json.loads, capsys.readouterr().out.splitlines())
    assert (fast["verdict"], fast["rule"]) == ("promoted", "better")
    assert (longer["verdict"], longer["rule"], longer["number"]) == ("refused", "budget", None)
    assert (same["verdict"], same["rule"], same["difference"]) == ("refused", "screening", 0)
    assert fast["interval"][0] > 0 and same["baseline"] == 1 and same["number"] == 1
    assert fast["costs"].keys() == {"seconds", "memory", "parameters", "lines"}

    assert main(["night", str(folder), "--next"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["promoted"] == ["fast"] and state["open"] == [] and not state["is_finished"]
    assert state["refused"] == {"longer": "budget", "same": "screening"}
    finish = finish_night(folder)
    assert finish["values"]["test"] == {"baseline": None, "winner": None}  # there is no such split
    assert finish["differences"]["valid"]["difference"] > 0.1
    assert main(["night", str(folder)]) == 2
    assert "is finished" in capsys.readouterr().err

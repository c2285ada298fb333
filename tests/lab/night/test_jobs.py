# SPDX-License-Identifier: Apache-2.0
"""Jobs end within their limits, and say why they failed."""

import json
import subprocess
import sys
import types
from pathlib import Path
from unittest.mock import Mock

import pytest

from transformer_jax.errors import BusyError, Stopped, UserError
from transformer_jax.lab.night import jobs
from transformer_jax.lab.night.jobs import JobError, Limits, run_job
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.parallel import hosts
from transformer_jax.runs.config import resolve_file

COMPONENT = """
from transformer_jax.lab.sweeps.tables import Row
from transformer_jax.nn.feed_forward import ACTIVATIONS

@ACTIVATIONS.register("{name}")
def {name}(x):
    {code}
    return x
"""


@pytest.mark.parametrize(
    ("code", "seconds", "gigabytes", "rule"),
    [
        ("import time; time.sleep(60)", 0.5, 1.0, "time"),
        ("open('big', 'w').write(' ' * 10**6); import time; time.sleep(60)", 60.0, 1e-4, "disk"),
    ],
)
def test_a_process_is_ended_at_its_limits(code, seconds, gigabytes, rule, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.05)
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, start_new_session=True)
    with pytest.raises(JobError) as failure:
        jobs._wait(process, Limits(seconds, gigabytes, tmp_path), hosts.Stops())
    process.kill()
    assert failure.value.rule == rule


def test_a_signal_ends_the_process_softly(tmp_path):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print(flush=True)"
    command = [sys.executable, "-c", f"{code}; time.sleep(60)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    process.stdout.readline()
    stops = hosts.Stops()
    stops.cause = "SIGTERM"
    with process.stdout, pytest.raises(Stopped, match="continues the night"):
        jobs._wait(process, Limits(60, 1, tmp_path), stops)
    assert process.returncode == 7


def test_a_field_that_a_version_adds_refuses_no_proposal(trained):
    """The digests of a night under way are those of the version that began it."""
    values = dict(trained.settings.values)
    added = values.pop("task.mask_rate")
    before = types.SimpleNamespace(values=values)
    digests = [jobs._shared_digests(s, 5, trained.workdir) for s in (before, trained.settings)]
    assert digests[0] == digests[1] and added
    changed = types.SimpleNamespace(values={**values, "task.mask_rate": 0.3})
    assert jobs._shared_digests(changed, 5, trained.workdir)["metric"] != digests[0]["metric"]


def check_of(folder, name, code):
    """Arguments of a check of the quick start's model with an activation that runs this code."""
    path = folder / f"{name}.py"
    path.write_text(COMPONENT.format(name=name, code=code))
    fields = {"config": "quickstart", "overrides": {"model.activation": name}, "metric": "loss"}
    return {**fields, "modules": [str(path)], "verifies": False}


def test_a_component_that_reads_files_is_named(tmp_path):
    arguments = check_of(tmp_path, "reads", "return x")
    (path,) = arguments["modules"]
    Path(path).write_text("open(__file__)")
    with pytest.raises(JobError, match="asks for open") as failure:
        run_job("check", Limits(120, 1, tmp_path), **arguments, guarded=[path])
    assert failure.value.rule == "files"


def test_a_process_that_gives_no_answer_has_crashed(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "__name__", "nowhere")  # the module that the process runs
    with pytest.raises(JobError, match="ended with status 1: .*No module named nowhere") as failure:
        run_job("check", Limits(60, 1, tmp_path))
    assert failure.value.rule == "crash"


def test_an_error_of_a_component_has_a_rule_and_a_reason(tmp_path, with_entries):
    with_entries(ACTIVATIONS, {})
    found = jobs.do_job("check", check_of(tmp_path, "odd", "raise ValueError('not even')"))
    assert found["rule"] == "config" and "not even" in found["reason"]


def test_a_row_that_a_killed_night_still_trains_is_no_fault_of_the_proposal(tmp_path, monkeypatch):
    busy = Mock(side_effect=BusyError("it is training there"))
    monkeypatch.setattr(jobs, "resolve_file", busy)
    fields = dict.fromkeys(("config", "overrides", "metric", "modules"))
    answer = jobs.do_job("train", fields | {"folder": "", "seeds": 1})

    def end(process, limits, stops):
        (scratch,) = limits.folder.iterdir()
        (scratch / "answer.json").write_text(json.dumps(answer))

    monkeypatch.setattr(jobs, "_wait", end)
    with pytest.raises(UserError, match="night: it is training there") as failure:
        run_job("train", Limits(60, 1, tmp_path))
    assert not isinstance(failure.value, JobError)


def test_a_metric_that_runs_lack_is_no_divergence(tmp_path, monkeypatch):
    row = Row("row", {"loss": [1.0], "bleu": [None]}, 1, 1.0, 1.0)
    monkeypatch.setattr(jobs, "train_rows", lambda *_: [row])
    fields = {"config": "quickstart", "overrides": {}, "metric": "bleu", "modules": []}
    answer = jobs.do_job("train", fields | {"folder": str(tmp_path), "seeds": 1})
    assert answer["rule"] == "config" and "no validation metric 'bleu'" in answer["reason"]


def test_a_test_split_that_is_the_validation_split_holds_nothing_out(tiny_language_model):
    names = {"missing": None, "same": "valid", "other": "train"}
    held_out = {}
    for name, split in names.items():
        path = tiny_language_model.get(f"data.{split}_text")
        settings = resolve_file("quickstart", {**tiny_language_model, "data.test_text": path})
        held_out[name] = jobs._has_held_out_data(settings)
    assert held_out == {"missing": False, "same": False, "other": True}

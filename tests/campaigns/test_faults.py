# SPDX-License-Identifier: Apache-2.0
"""The campaigns against faults, short; and that their judge finds each fault."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, ROOT

FAULTS = Path(__file__).parent / "faults"
sys.path.insert(0, str(FAULTS))
import campaign  # noqa: E402
import damage  # noqa: E402


def report_of(*words, status=0):
    """Report of a program: by default, of a campaign that finds nothing wrong."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status, done.stderr[-2000:] + done.stdout
    return json.loads(done.stdout.splitlines()[0])


def flags(fields):
    return [f"--config.{name}={value}" for name, value in fields.items() if value is not None]


def test_a_run_killed_during_a_save_ends_as_the_uninterrupted_one(tiny, tmp_path):
    fields = flags(tiny | {"checkpoint.every_steps": 3, "eval.every_steps": 1000})
    words = [f"--config={QUICKSTART}", f"--workdir={tmp_path}", *fields]
    report = report_of(FAULTS / "kill_resume.py", *words, "--quick", "--kills=1", "--during_save=1")
    assert report["identical"] and report["during_save"] == 1


def test_a_command_that_gets_a_signal_ends_as_documented_and_resumes(tmp_path):
    words = [f"--workdir={tmp_path / 'campaign'}", "--commands=train", "--cases=2"]
    assert report_of(FAULTS / "signals.py", *words)["cases"] >= 2


def test_two_processes_that_differ_both_say_in_what(tmp_path):
    only = "--only=^(seed|optimizer.learning_rate|processes|no field)$"
    report = report_of(FAULTS / "disagree.py", f"--workdir={tmp_path}", only)
    assert report["statuses"] == {"2 2": 4}


def test_a_transfer_that_is_killed_leaves_nothing_in_part(tmp_path):
    words = ["--model=tests/interop/fixtures/gpt2", f"--workdir={tmp_path / 'w'}", "--kills=3"]
    report = report_of(FAULTS / "kill_transfer.py", *words)
    assert report["import"]["kills"] >= 3 and report["export"]["kills"] >= 3


def test_a_sweep_that_is_killed_has_the_table_of_the_uninterrupted_one(tmp_path):
    report = report_of(FAULTS / "kill_sweep.py", f"--workdir={tmp_path}", "--kills=1")
    assert report["kills"] == 1


def test_a_run_in_a_bucket_loses_nothing(tiny_language_model, tmp_path):
    """`make campaigns` runs it on Cloud Storage, too."""
    changes = {"train.num_steps": 600, "checkpoint.every_steps": 50, "eval.every_steps": 600}
    changes |= {"optimizer.decay_steps": 600, "eval.num_examples": None, "checkpoint.keep": 3}
    words = ["--bucket=s3", f"--config={QUICKSTART}", "--kills=0", "--flips=1", "--seed=1"]
    words += [f"--workdir={tmp_path / 'campaign'}", *flags(tiny_language_model | changes)]
    report = report_of("-m", "tests.campaigns.faults.bucket_faults", *words)
    assert report["kills"] == report["flips"] == 1 and not report["lost"]
    assert report["identical"]


EARLY = f"""
import sys
from functools import partial
from itertools import islice
from pathlib import Path
sys.path.insert(0, {str(FAULTS)!r})
import fuzz_config, fuzz_shell, tiny_runs
from campaign import report, run
from transformer_jax.cli.parser import parse
from transformer_jax.runs.config import load_config

base, words = Path(sys.argv[1]), ("train", "sweep", "benchmark", "plan")
tiny_runs.write_texts(base / "texts")
for task in tiny_runs.RUNS:
    (base / task).mkdir()

def is_invalid(case):
    folder = base / "probe" / case.name.partition(":")[0]
    (folder / "outside").mkdir(parents=True)
    case.prepare(folder)
    try:
        load_config(folder / "config.py", parse([*case.commands[0].argv]).overrides)
    except BaseException:
        return True
    return False

def has_no_run(case):
    (command,) = case.commands
    return {{0, 2}} <= case.allowed and not {{*words}} & {{*command.argv}} and not command.fresh

drawn, ends_early = {{
    "config": (partial(fuzz_config.drawn, base / "texts"), is_invalid),
    "shell": (partial(fuzz_shell.drawn, base), has_no_run),
}}[sys.argv[2]]
cases = filter(ends_early, map(drawn, range(1000)))
sys.exit(report(run(islice(cases, 40), base / "cases"), sys.stderr))
"""


@pytest.mark.parametrize("fuzzed", ["config", "shell"])
def test_no_value_of_a_config_or_command_costs_more_than_a_line(tmp_path, fuzzed):
    """Cases that end before any text is read or a model is asked for; there is no run."""
    report = report_of("-c", EARLY, tmp_path, fuzzed)
    assert report["cases"] == 40 and list((tmp_path / "cases").iterdir()) == []
    assert fuzzed == "shell" or report["statuses"] == {"2": 40}


@pytest.mark.parametrize("kind", [kind for kind, _ in damage.KINDS], ids=lambda kind: kind.__name__)
def test_a_damaged_workdir_is_loaded_or_refused(workdir, tmp_path, kind):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "it").write_text("the user's own")
    kind(workdir, outside, random.Random(7))
    before = campaign.snapshot(outside)
    try:
        tj.load(workdir)
    except tj.UserError as error:
        assert "\n" not in str(error)
    assert campaign.snapshot(outside) == before


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import campaign
from campaign import Case, Command

def main():
    match sys.argv[1:]:
        case ["good"]:
            print(sys.stdin.read(), end="")
            Path("mine").write_text("kept inside the case's folder")
        case ["silent"]:
            print("another word", file=sys.stderr)
            return 2
        case ["raises"]:
            raise ValueError("what")
        case ["dies"]:
            os.abort()
        case ["hangs"] | ["interrupted"]:
            time.sleep(60)
        case ["writes"]:
            Path("outside/mine").write_text("not here")
    return 0

def interrupt(pid, seconds, folder):
    if seconds > 0.2:
        os.kill(pid, signal.SIGTERM)

def echoed(folder, ended):
    return [] if ended[0].stdout == "a line" else ["output: " + ended[0].stdout]

import transformer_jax.cli.main as cli
cli.main = main
campaign.import_everything = bool
campaign.SECONDS = 1
cases = [Case(name, [Command([name])]) for name in sys.argv[2].split(",")]
cases.append(Case("good twice", [Command(["good"], stdin=b"a line")] * 2, check=echoed))
cases.append(Case("interrupted", [Command(["interrupted"])], allowed={-15}, watch=interrupt))
sys.exit(campaign.report(campaign.run(cases, Path(sys.argv[1])), sys.stderr))
"""


def test_a_campaign_reports_each_fault_of_a_program(tmp_path, monkeypatch):
    wrong = {
        "silent": ["told: 0 lines of error"],
        "raises": ["status: 1, allowed [0, 2]", "traceback"],
        "dies": ["status: -6, allowed [0, 2]", "native: Fatal Python error"],
        "hangs": ["hang: killed"],
        "writes": ["outside: changed"],
    }
    monkeypatch.setenv("PYTHONPATH", str(FAULTS))
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    report = report_of("-c", PROGRAM, tmp_path / "cases", ",".join(wrong), status=1)
    assert {one["case"]: one["wrong"] for one in report["bad"]} == wrong
    assert report["cases"] == len(wrong) + 2
    assert report["statuses"]["0 0"] == 1 and report["statuses"]["-15"] == 1

# SPDX-License-Identifier: Apache-2.0
"""The check of devices, with tiny sizes on a CPU and without PyTorch."""

import json
import os
import subprocess
import sys

from experiments.devices.__main__ import LIMITS, chosen_parts
from tests.conftest import ROOT


def check(folder, *words, **environ):
    command = [sys.executable, "-m", "experiments.devices", *words, f"--out={folder}"]
    environ = os.environ | environ
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


def test_every_part_succeeds(tmp_path):
    ended = check(tmp_path, "--dry")
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert ended.returncode == 0, [result for result in results if result.get("ok") is False]
    labels = {part: {r["label"] for r in results if r["part"] == part} for part in LIMITS}
    assert all("took" in labels[part] for part in LIMITS if part != "peer")
    assert not any("left out" in label for part in labels for label in labels[part])
    assert {"groups, ms", "kernel", "losses against plain attention"} <= labels["base"]
    assert {"loop, batches ready", "loop, 0 workers", "loop, 1 workers"} <= labels["base"]
    assert (tmp_path / "kernels_gpt2.txt").read_text()
    assert "| base | step alone | step_ms" in ended.stdout


def test_a_part_that_ends_early_is_a_failure(tmp_path):
    ended = check(tmp_path, "environment", JAX_PLATFORMS="nowhere")
    assert ended.returncode == 1 and "| environment | versions | jax " in ended.stdout
    assert "| environment | ended | ok False, problem exit code 1, log " in ended.stdout
    assert "nowhere" in ended.stdout


def test_a_part_without_time_left_is_left_out(tmp_path):
    ended = check(tmp_path, "big", "--seconds=9")
    assert ended.returncode == 0 and "| big | left out | reason no time left |" in ended.stdout


def test_groups_and_parts_are_chosen_in_their_order():
    assert chosen_parts([], dry=False) == chosen_parts(["all"], dry=False) == [*LIMITS]
    assert chosen_parts(["first"], dry=True)[:2] == ["environment", "attention"]
    assert "peer" not in chosen_parts(["second"], dry=True)
    assert chosen_parts(["gpt2", "base"], dry=False) == ["base", "gpt2"]
    assert chosen_parts(["first", "gpt2"], dry=False) == chosen_parts(["bse"], dry=False) == []

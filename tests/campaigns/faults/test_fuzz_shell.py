# SPDX-License-Identifier: Apache-2.0
"""A short form of the campaign: cases that end before a model is asked for; there is no run."""

import json
import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).parent

PROGRAM = """
import sys
from itertools import islice
from pathlib import Path
import fuzz_shell, tiny_runs
from campaign import report, run

runs = Path("runs")
for name in (*tiny_runs.RUNS, "texts"):
    (runs / name).mkdir(parents=True)
for name in ("a.en", "a.de"):
    (runs / "texts" / name).write_text(tiny_runs.TEXTS[name], encoding="utf-8")

def ends_early(case):
    (command,) = case.commands
    trains = {"train", "sweep", "benchmark", "plan"} & set(command.argv)
    return {0, 2} <= case.allowed and not trains and not command.fresh

cases = filter(ends_early, map(fuzz_shell.Drawn(runs), range(1000)))
sys.exit(report(run(islice(cases, 40), Path("cases")), sys.stderr))
"""


def test_no_command_line_costs_more_than_a_line(tmp_path):
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(FAULTS)!r})\n{PROGRAM}"]
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert json.loads(answer.stdout)["cases"] == 40
    assert list((tmp_path / "cases").iterdir()) == []

# SPDX-License-Identifier: Apache-2.0
"""A short form of the campaign: cases that end before any text is read."""

import json
import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).parent

PROGRAM = """
import sys
from itertools import islice
from pathlib import Path
import fuzz_config, tiny_runs
from campaign import report, run

from transformer_jax.cli.parser import parse
from transformer_jax.runs.config import load_config

tiny_runs.write_texts(Path("texts"))

def ends_early(case):
    folder = Path("probe") / case.name.partition(":")[0]
    (folder / "outside").mkdir(parents=True)
    case.prepare(folder)
    try:
        load_config(folder / "config.py", parse([*case.commands[0].argv]).overrides)
    except BaseException:
        return True
    return False

cases = filter(ends_early, map(fuzz_config.Drawn(Path("texts")), range(1000)))
sys.exit(report(run(islice(cases, 40), Path("cases")), sys.stderr))
"""


def test_no_value_of_a_config_costs_more_than_a_line(tmp_path):
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(FAULTS)!r})\n{PROGRAM}"]
    answer = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    told = json.loads(answer.stdout)
    assert (told["cases"], told["statuses"]) == (40, {"2": 40})

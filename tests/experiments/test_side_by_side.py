# SPDX-License-Identifier: Apache-2.0
"""Programs in turn."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmarks" / "side_by_side.py"


def side_by_side(folder, *programs):
    """Commands that run Python; those here count their runs in a file of the folder."""
    options = [f"--{name}={sys.executable} -c '{code}'" for name, code in programs]
    command = [sys.executable, str(SCRIPT), "--rounds=3", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def printing(speeds, name):
    """The code of a program that writes its name, and prints one speed after another."""
    return (
        'import json; f = open("order", "a+"); f.seek(0); '
        f'n = f.read().count("{name}"); f.write("{name}"); '
        f'print("chatter"); print(json.dumps(dict(tokens_per_s={speeds}[n])))'
    )


def test_medians_of_runs_in_turn(tmp_path):
    ours, peer = printing([300, 9000, 310], "o"), printing([200, 1, 150], "p")
    other = printing([620, 620, 620], "q")
    answer = side_by_side(tmp_path, ("ours", ours), ("peer", peer), ("peer", other))
    found = json.loads(answer.stdout)
    assert (tmp_path / "order").read_text() == "opqopqopq"
    assert found["ours"]["tokens_per_s"] == 310
    assert found["ours"]["each"] == [300, 9000, 310]
    assert [peer["tokens_per_s"] for peer in found["peers"]] == [150, 620]
    assert [peer["ratio"] for peer in found["peers"]] == [round(310 / 150, 2), 0.5]
    assert found["peers"][1]["command"].endswith(f"'{other}'")
    assert all(1 < one["memory_mb"] < 1000 for one in (found["ours"], *found["peers"]))


def test_a_program_without_a_figure(tmp_path):
    for code, message in (
        ("raise SystemExit(3)", "status 3 from"),
        ('print("fast")', "no JSON object"),
        ("print(dict(loss=1))", "no JSON object"),
    ):
        answer = side_by_side(tmp_path, ("ours", code), ("peer", printing([1] * 3, "p")))
        assert answer.returncode == 2 and answer.stdout == ""
        assert message in answer.stderr and answer.stderr.count("\n") == 1
    assert not (tmp_path / "order").exists()

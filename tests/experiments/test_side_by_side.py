"""Two programs in turn."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "benchmarks" / "side_by_side.py"


def side_by_side(ours, peer, folder):
    """Commands that run Python; those here count their runs in a file of the folder."""
    options = [f"--{name}={sys.executable} -c '{code}'" for name, code in (ours, peer)]
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
    answer = side_by_side(("ours", ours), ("peer", peer), tmp_path)
    found = json.loads(answer.stdout)
    assert (tmp_path / "order").read_text() == "opopop"
    assert found["tokens_per_s"] == {"ours": 310, "peer": 150}
    assert found["ratio"] == round(310 / 150, 2)
    assert found["each"]["ours"] == [300, 9000, 310]
    assert all(1 < mb < 1000 for mb in found["memory_mb"].values())


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", "status 3 from"),
        ('print("fast")', "no JSON object"),
        ("print(dict(loss=1))", "no JSON object"),
        ("", "no JSON object"),
    ],
)
def test_a_program_without_a_figure(tmp_path, code, message):
    answer = side_by_side(("ours", code), ("peer", printing([1] * 3, "p")), tmp_path)
    assert answer.returncode == 2 and answer.stdout == ""
    assert message in answer.stderr and answer.stderr.count("\n") == 1
    assert not (tmp_path / "order").exists()

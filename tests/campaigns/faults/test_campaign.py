# SPDX-License-Identifier: Apache-2.0
"""A campaign reports each fault of a made-up program."""

import json
import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).parent

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
        case ["refused"]:
            print("error: one line", file=sys.stderr)
            return 2
        case ["silent"]:
            print("another word", file=sys.stderr)
            return 2
        case ["raises"]:
            raise ValueError("what")
        case ["dies"]:
            os.abort()
        case ["hangs"]:
            time.sleep(60)
        case ["writes"]:
            Path("outside/precious").write_text("lost")
        case ["through a link"]:
            Path("link/precious").unlink()
        case ["interrupted"]:
            time.sleep(60)
    return 0

def prepare(folder):
    (folder / "outside" / "precious").write_text("the user's")
    (folder / "link").symlink_to(folder / "outside")

def interrupt(pid, seconds, folder):
    if seconds > 0.2:
        os.kill(pid, signal.SIGTERM)

def echoed(folder, ended):
    return [] if ended[0].stdout == "a line" else ["output: " + ended[0].stdout]

import transformer_jax.cli.main as cli
cli.main = main
campaign.import_everything = bool
campaign.SECONDS = 1
cases = [Case(name, [Command([name])], prepare) for name in sys.argv[1].split(",")]
cases.append(Case("good twice", [Command(["good"], stdin=b"a line")] * 2, prepare, check=echoed))
cases.append(Case("interrupted", [Command(["interrupted"])], allowed={-15}, watch=interrupt))
sys.exit(campaign.report(campaign.run(cases, Path("cases")), sys.stderr))
"""


def test_each_kind_of_wrong_is_found(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    wrong = {
        "good": [],
        "refused": [],
        "silent": ["told: 0 lines of error"],
        "raises": ["status: 1, allowed [0, 2]", "traceback"],
        "dies": ["status: -6, allowed [0, 2]", "native: Fatal Python error"],
        "hangs": ["hang: killed"],
        "writes": ["outside: changed"],
        "through a link": ["outside: changed"],
    }
    done = subprocess.run(
        [sys.executable, "program.py", ",".join(wrong)],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{FAULTS}:{FAULTS.parents[1]}", "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert {one["case"]: one["wrong"] for one in report["bad"]} == {
        k: v for k, v in wrong.items() if v
    }
    assert report["cases"] == len(wrong) + 2
    assert report["statuses"]["0 0"] == 1 and report["statuses"]["-15"] == 1

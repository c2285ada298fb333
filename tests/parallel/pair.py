# SPDX-License-Identifier: Apache-2.0
"""One of two processes that run commands and checks in turn, because a start takes five seconds.

    pair.py PLAN --coordinator=HOST:PORT --num_processes=2 --process_id=NUMBER

PLAN is a JSON file:

    train, continue      words of these commands; the last one continues until a SIGTERM
    ports                one for each command

In its folder are `run`, the workdir of `train`, its copies `damaged` and `continued`, which this
script makes, and N.json, the results of process N.

Not a test: `test_hosts.py` starts it.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from restored import use_in_job

from transformer_jax.cli.main import main
from transformer_jax.parallel import hosts, job


def make_copies(folder):
    """Copies the run; in the damaged copy a bit of the last checkpoint is flipped."""
    for name in ("damaged", "continued"):
        shutil.copytree(folder / "run", folder / name)
    files = (folder / "damaged/checkpoints/30/params").rglob("d/*")
    arrays = max(files, key=lambda file: file.stat().st_size)
    contents = bytearray(arrays.read_bytes())
    contents[99] ^= 4
    arrays.write_bytes(contents)


def run_in_turn():
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("--process_id", type=int)
    args, _ = parser.parse_known_args()
    plan = json.loads(args.plan.read_text())
    folder = args.plan.parent
    ports = iter(plan["ports"])

    def run(name):
        """Status of a command. Its processes meet at a port of their own, and are compared."""
        words = ["--distributed", "--num_processes=2", f"--process_id={args.process_id}"]
        status = main([*plan[name], *words, f"--coordinator=127.0.0.1:{next(ports)}"])
        job.connect = lambda *args: None  # the processes stay connected after the first command
        return status

    results = {"train": run("train")}
    hosts.run_on_primary(lambda: make_copies(folder))
    results["used"] = use_in_job(folder / "run", folder / "damaged")
    (folder / f"{args.process_id}.json").write_text(json.dumps(results))
    return run("continue")


if __name__ == "__main__":
    sys.exit(run_in_turn())

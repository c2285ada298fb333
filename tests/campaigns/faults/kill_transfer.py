# SPDX-License-Identifier: Apache-2.0
"""Tests that an import or an export that is killed leaves nothing that the next one refuses.

python tests/campaigns/faults/kill_transfer.py --model=tests/interop/fixtures/gpt2 \\
    --workdir=runs/kill_transfer --kills=20

Imports a published model and exports the run, first without interruption, then with SIGKILLs at
random moments until each call ends by itself. The folder to write is missing or empty at first, in
turn. Prints one JSON object; exit status 1 if a call after a kill fails, its files differ from
those of the uninterrupted one, a folder is there in part, or a file of the user has changed.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from campaign import snapshot

from transformer_jax.runtime.files import PARTIAL

CLOCKED = (b".transformer_jax", b"checkpoints")
"""Starts of paths that depend on the process or the clock."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--model", required=True, type=Path, help="directory of the model")
    parser.add_argument("--workdir", required=True, type=Path, help="new; holds all folders")
    parser.add_argument("--kills", type=int, default=20, help="of each of the two commands")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    args = parser.parse_args()
    folder, rng = args.workdir.absolute(), random.Random(args.seed)
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("the user's\n")
    run = folder / "import" / "whole"
    kept = [folder / "notes.txt", args.model]

    def importing(target: Path) -> Sequence[str]:
        return ["import", f"--from={args.model.absolute()}", f"--workdir={target}"]

    def exporting(target: Path) -> Sequence[str]:
        return ["export", f"--workdir={run}", "--format=hf", f"--to={target}"]

    reports = {"import": campaign(folder / "import", importing, kept, args.kills, rng)}
    kept.append(run)
    reports["export"] = campaign(folder / "export", exporting, kept, args.kills, rng)
    print(json.dumps(reports))
    return int(any(report["wrong"] for report in reports.values()))


def campaign(
    folder: Path,
    command: Callable[[Path], Sequence[str]],
    kept: Sequence[Path],
    kills: int,
    rng: random.Random,
) -> dict[str, Any]:
    """Runs a command without interruption, and then again and again with kills."""
    folder.mkdir()
    before = [contents(path) for path in kept]
    assert call(command(folder / "whole")) == 0
    began = time.monotonic()
    assert call(command(folder / "second")) == 0
    seconds = time.monotonic() - began
    wanted = contents(folder / "whole")
    found: dict[str, Any] = {"kills": 0, "partial": 0, "calls": 0, "wrong": []}
    while found["kills"] < kills:
        target = folder / f"killed_{found['calls']}"
        if found["calls"] % 2:
            target.mkdir()
        for attempt in itertools.count():
            # Half of the kills come while the folder is being written; the sixth call may end.
            watched = folder if rng.random() < 0.5 else None
            moment = rng.uniform(0, seconds / (20 if watched else 1))
            status = call(command(target), moment if attempt < 5 else None, watched)
            if status is not None:
                break
            found["kills"] += 1
            found["partial"] += has_partial(folder)
            names = [path.name for path in target.glob("*")]
            if any(PARTIAL not in name for name in names):
                if contents(target) == wanted:
                    status = 0  # killed after its last step
                else:
                    found["wrong"].append(f"{target} is there in part")
                break
        found["calls"] += 1
        if status != 0 or contents(target) != wanted:
            found["wrong"].append(f"{target}: status {status}")
        if any(path.name.startswith(".") for path in folder.iterdir()):
            found["wrong"].append(f"{folder}: a temporary folder is left")
    if [contents(path) for path in kept] != before:
        found["wrong"].append("a file of the user has changed")
    return found


def call(
    words: Sequence[str], seconds: float | None = None, watched: Path | None = None
) -> int | None:
    """Exit status of a command in a fork of this process; None if it is killed after `seconds`.

    These count from its start, or from when it writes a temporary folder below `watched`.
    """
    import transformer_jax.interop.exporting
    import transformer_jax.interop.importing  # noqa: F401 (forks need not import them)
    from transformer_jax.cli.main import main as run_command

    start, child = time.time_ns(), os.fork()
    if not child:
        with open(os.devnull, "w") as silent:
            os.dup2(silent.fileno(), 1)
            os.dup2(silent.fileno(), 2)
            os._exit(run_command(list(words)))
    end = None if seconds is None or watched else time.monotonic() + seconds
    while end is None or time.monotonic() < end:
        if watched and end is None and seconds is not None and has_partial(watched, start):
            end = time.monotonic() + seconds
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if status == -signal.SIGKILL else status


def has_partial(folder: Path, since: int = 0) -> bool:
    """Returns True if a temporary folder is below this one, and was written since this time."""
    with contextlib.suppress(OSError):  # it may be moved at any moment
        found = (*folder.glob(f".*{PARTIAL}"), *folder.glob(f"*/{PARTIAL}"))
        return any(path.stat().st_mtime_ns > since for path in found)
    return False


def contents(path: Path) -> dict[str, tuple]:
    """Contents of a folder, or of that of a file, without what depends on the clock."""
    if path.is_file():
        return {"": (path.read_bytes(),)}
    found = snapshot(path)
    return {name: found[name] for name in found if not bytes.fromhex(name).startswith(CLOCKED)}


if __name__ == "__main__":
    sys.exit(main())

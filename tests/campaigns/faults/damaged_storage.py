# SPDX-License-Identifier: Apache-2.0
"""Tests checkpoints against flipped bits and a full disk.

    python tests/campaigns/faults/damaged_storage.py --config=configs/quickstart.py --workdir=runs/d

Trains a run. Then, 100 times: flips one bit in a file of the last checkpoint, opens the checkpoint
to resume from, and restores the bit. Each time the damage must be detected and the previous
checkpoint used. (Orbax's metadata at the top of the folder is left out: nothing is restored from
it.) Then trains on a disk of 2 MB, in its own mount namespace (Linux): the run must stop with a
one-line message and status 2, and earlier checkpoints must load. Set config fields as for `train`.
Prints one JSON object; exit status 1 if any check failed.
"""

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path

from kill_resume import finish

from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.checkpoints.store import find_checkpoint

DISK = "2m"
ON_SMALL_DISK = """
mount -t tmpfs -o size=$SIZE tmpfs "$DIR" || exit 90
"$@" "--workdir=$DIR/run"
echo "status $?"
ls "$DIR/run/checkpoints"
echo "A man sees a dog." | "$1" "$2" "$3" predict "--workdir=$DIR/run" >/dev/null && echo "loads"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--workdir", required=True, type=Path, help="new; holds both runs")
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the bits")
    args, overrides = parser.parse_known_args()
    command = ["train", f"--config={args.config}", *overrides]
    run = args.workdir / "run"
    finish(command, run)
    draw = random.Random(args.seed)
    flips = [flip_a_bit(run, draw) for _ in range(args.flips)]
    disk = train_on_small_disk(command, args.workdir / "disk")
    missed = [flip for flip in flips if not flip["found"]]
    report = {"flips": len(flips), "found": len(flips) - len(missed), "missed": missed, **disk}
    print(json.dumps(report))
    return int(bool(missed) or not disk["clean"])


def flip_a_bit(workdir: Path, draw: random.Random) -> dict:
    """Flips a bit of the last checkpoint; returns True if its file was named and the previous
    checkpoint used. Restores the bit."""
    checkpoints = workdir / "checkpoints"
    steps = step_folders(checkpoints)
    newest, before = sorted(steps, reverse=True)[:2]
    files = [path for path in steps[newest].glob("*/**/*") if path.is_file()]
    path = draw.choice(sorted([*files, steps[newest] / manifest.MANIFEST]))
    whole = path.read_bytes()
    place, bit = draw.randrange(len(whole)), draw.randrange(8)
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    name = str(path.relative_to(steps[newest]))
    damage = manifest.find_damage(steps[newest]) or ""
    taken = find_checkpoint(checkpoints, "latest")
    path.write_bytes(whole)
    restored = find_checkpoint(checkpoints, "latest")
    named = name in damage or (damage and name == manifest.MANIFEST)
    found = bool(named) and (taken, restored) == (steps[before], steps[newest])
    print(f"{name}, byte {place}, bit {bit}: {damage}", file=sys.stderr)
    return {"file": name, "byte": place, "bit": bit, "taken": taken.name, "found": found}


def train_on_small_disk(command: list[str], folder: Path) -> dict:
    """Trains until the disk is full; returns the messages, and whether the run loads afterwards."""
    folder.mkdir(parents=True)
    inside = ["unshare", "--map-root-user", "--mount", "env", f"DIR={folder}", f"SIZE={DISK}"]
    words = [sys.executable, "-m", "transformer_jax", *command]
    shell = [*inside, "sh", "-c", ON_SMALL_DISK, "sh", *words]
    told = subprocess.run(shell, capture_output=True, text=True)
    error = told.stderr.strip().splitlines()
    errors = [line for line in error if line.startswith("error:") or "Traceback" in line]
    lines = told.stdout.split("\n")
    clean = "status 2" in lines and "loads" in lines and len(errors) == 1
    return {"disk": DISK, "clean": clean, "said": errors, "afterwards": lines}


if __name__ == "__main__":
    sys.exit(main())

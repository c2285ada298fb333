# SPDX-License-Identifier: Apache-2.0
"""Tests runs in buckets against kills, lost machines and flipped bits.

python -m tests.campaigns.faults.bucket_faults --bucket=s3 --config=configs/quickstart.py \
    --workdir=runs/bucket_faults

Trains once on disk without interruption, and once in a bucket of an emulator on loopback (s3 or gs)
that refuses, loses and delays requests. That run is killed many times (SIGKILL), every other time
during the upload of a checkpoint. After half of the kills the machine is lost with its local copy;
after others one bit is flipped in the newest checkpoint of the bucket or the copy. Then the run
resumes. At the end its last checkpoint must equal the uninterrupted run's bit for bit, and its
records must be equal except for times.

Each time the run must resume from the newest intact checkpoint, of the copy if it exists, else of
the bucket; if it resumes from an earlier one, checkpoints were lost. Set config fields as for
`train`. Prints one JSON object; exit status 1 if anything is lost or differs.
"""

import argparse
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ml_collections import ConfigDict

import transformer_jax as tj
from tests.campaigns.faults import kill_resume
from tests.campaigns.faults.emulators import Emulator, emulator
from tests.campaigns.faults.kill_resume import last_checkpoint, last_step
from transformer_jax.buckets import lease
from transformer_jax.buckets.bucket import Bucket
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import step_folders

STEP = re.compile(r"checkpoints/([0-9]+)/(.+)")
SECONDS = 120  # seconds to wait for the moment of a kill


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--bucket", required=True, choices=("s3", "gs"))
    parser.add_argument("--config", required=True)
    parser.add_argument("--workdir", required=True, type=Path, help="new; holds all but the bucket")
    parser.add_argument("--kills", type=int, default=20, help="with nothing else, or a lost copy")
    parser.add_argument("--flips", type=int, default=20, help="each after a kill of its own")
    parser.add_argument("--seed", type=int, default=0)
    args, overrides = parser.parse_known_args()
    os.environ |= kill_resume.QUICK
    root = args.workdir.absolute()
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(root / "xla"))
    fields = dict(word.removeprefix("--config.").split("=", 1) for word in overrides)
    config = tj.config(args.config, fields)
    command = ["train", f"--config={args.config}", *overrides, "--config.logging.every_steps=1"]
    kill_resume.finish(command, root / "uninterrupted")
    rounds = ["kill"] * args.kills + ["flip"] * args.flips
    draw = random.Random(args.seed)
    draw.shuffle(rounds)
    with emulator(args.bucket) as cloud:
        os.environ |= cloud.environ | {"XDG_CACHE_HOME": str(root / "cache")}
        campaign = Campaign(cloud, command, root, config, draw)
        for number, kind in enumerate(rounds):
            campaign.round(kind, during_push=number % 2 == 0, left=len(rounds) - number)
            print(f"{number + 1}: {campaign.told[-2:]}", file=sys.stderr, flush=True)
        report = campaign.report(root / "uninterrupted")
    print(json.dumps(report))
    return int(bool(report["lost"] or report["different"]))


@dataclasses.dataclass
class Campaign:
    """The run in the bucket, with its kills and flipped bits."""

    cloud: Emulator
    command: list[str]
    root: Path
    config: ConfigDict
    draw: random.Random
    told: list[dict] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.bucket = Bucket(f"{self.cloud.address}/run")

    @property
    def copy(self) -> Path:
        """Local copy of the workdir; may be deleted."""
        found = list((self.root / "cache").glob("transformer_jax/workdirs/*/files/run"))
        return found[0] if found else self.root / "none"

    def round(self, kind: str, during_push: bool, left: int) -> None:
        """Starts the run, kills it, then deletes the copy or flips a bit."""
        self._faults(0.03)
        first = max(last_checkpoint(self.copy), *self._sealed(), 0)
        far = 1 + 2 * (self.config.train.num_steps - first) // (left + 1)
        step = first + max(2 * self.config.checkpoint.every_steps, self.draw.randrange(far))
        began, process = time.time(), self._started()
        until = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < until:
            if last_step(self.copy, began) >= step and not (during_push and not self._on_its_way()):
                break
            time.sleep(0.1)
        process.kill()
        status = process.wait()
        self._faults(0.0)
        self._note_start(status)
        told = {"kind": kind, "during_push": self._on_its_way(), "status": status}
        told["after_step"] = last_step(self.copy, began)
        gone = self.draw.random() < 0.5
        if kind == "flip":
            told["flipped"] = self._flip(gone)
        if gone:
            for name in self.bucket.entries(lease.LEASE_FOLDER):  # or the next start waits a minute
                self.bucket.delete(name)
            shutil.rmtree(self.root / "cache" / "transformer_jax" / "workdirs", ignore_errors=True)
        told |= {"copy": "gone" if gone else "there", "expected": self._newest_whole()}
        told["seconds"] = round(time.time() - began)
        self.told.append(told)

    def _started(self) -> subprocess.Popen:
        words = [sys.executable, "-m", "transformer_jax", *self.command]
        with (self.root / "messages").open("w") as messages:
            return subprocess.Popen([*words, f"--workdir={self.bucket.address}"], stderr=messages)

    def _note_start(self, status: int) -> None:
        """Records the step that the last start resumed from; exits if the start failed."""
        messages = (self.root / "messages").read_text()
        if status not in (0, -signal.SIGKILL):
            sys.exit(messages)
        if self.told:
            found = re.search(r"continues from step (\d+)", messages)
            self.told[-1]["goes_on_from"] = int(found[1]) if found else 0

    def report(self, uninterrupted: Path) -> dict:
        """Report of the campaign, after the run has finished."""
        self._note_start(self._started().wait())
        brought = self.root / "brought"
        for name in self.bucket.entries():
            self.bucket.download(name, brought / name)
        different = kill_resume.differences(uninterrupted, brought)
        if kill_resume.metrics(uninterrupted) != kill_resume.metrics(brought):
            different.append("metrics.jsonl")
        return {
            "bucket": self.cloud.address,
            "kills": len(self.told),
            "during_push": sum(one["during_push"] for one in self.told),
            "copies_gone": sum(one["copy"] == "gone" for one in self.told),
            "flips": sum(one["kind"] == "flip" for one in self.told),
            "bits_flipped": sum(one.get("flipped", "").startswith("bit") for one in self.told),
            "lost": [one for one in self.told if one["goes_on_from"] != one["expected"]],
            "identical": not different,
            "different": different,
        }

    def _faults(self, share: float) -> None:
        self.cloud.faults.refused = self.cloud.faults.lost = share
        self.cloud.faults.delayed = (4 * share, 0.3)

    def _files(self) -> dict[int, set[str]]:
        """Files of each step in the bucket."""
        found: dict[int, set[str]] = {}
        for name in self.bucket.entries("checkpoints"):
            if match := STEP.fullmatch(name):
                found.setdefault(int(match[1]), set()).add(match[2])
        return found

    def _sealed(self) -> list[int]:
        """Steps with a manifest in the bucket."""
        return [step for step, names in self._files().items() if manifest.MANIFEST in names]

    def _on_its_way(self) -> bool:
        """Returns True if the bucket has part of a checkpoint."""
        return any(manifest.MANIFEST not in names for names in self._files().values())

    def _newest_whole(self) -> int:
        """Newest intact step in the copy or the bucket; 0: none."""
        here = step_folders(self.copy / "checkpoints")
        whole = [step for step, folder in here.items() if manifest.find_damage(folder) is None]
        for step, names in self._files().items():
            folder = self.root / "looked_at" / str(step)
            if manifest.MANIFEST in names:
                for name in names:
                    self.bucket.download(f"checkpoints/{step}/{name}", folder / name)
                whole += [step] * (manifest.find_damage(folder) is None)
        shutil.rmtree(self.root / "looked_at", ignore_errors=True)
        return max(whole, default=0)

    def _flip(self, gone: bool) -> str:
        """Flips a bit in the newest checkpoint, in the bucket if the copy will be deleted."""
        here = step_folders(self.copy / "checkpoints")
        steps = self._sealed() if gone else list(here)
        if len(steps) < 2:
            return "nothing: there was one checkpoint, or none"
        step = max(steps)
        kept = self.bucket.read(f"checkpoints/{step}/{manifest.MANIFEST}") if gone else b""
        listed = json.loads(kept)["files"] if gone else manifest.read_entries(here[step])
        name = self.draw.choice(sorted(name for name, one in listed.items() if one["size"]))
        place = f"checkpoints/{step}/{name}"
        content = bytearray(self.bucket.read(place) if gone else (self.copy / place).read_bytes())
        bit = self.draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        if gone:
            self.bucket.write(place, bytes(content))
        else:
            (self.copy / place).write_bytes(content)
        return f"bit {bit} of {place} in the {'bucket' if gone else 'copy'}"


if __name__ == "__main__":
    sys.exit(main())

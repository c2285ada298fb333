# SPDX-License-Identifier: Apache-2.0
"""Measures the time from a command to its first step, with and without the token cache.

    python -m experiments.benchmarks.second_start --folder=/tmp/starts --megabytes=1,200

Generates text of each size, in files of a megabyte, and trains one step of a small language model
on it three times, each in a new workdir, with a tokenizer trained before: the first run tokenizes
and fills the cache, the second reads the cache, the third has none. Prints a row per size. With
--pairs a small encoder-decoder reads each line as source and target.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
CONFIG = {
    "model.d_model": 64,
    "model.d_ff": 128,
    "train.num_steps": 1,
    "train.tokens_per_batch": 512,
    "logging.every_steps": 1,
}
LANGUAGE_MODEL = {"model.num_layers": 2, "model.max_length": 64, "data.max_length": 64}
TRANSLATION = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2}
MEGABYTE = 10**6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for text, tokens and runs")
    parser.add_argument("--megabytes", default="1,200", metavar="N,...")
    parser.add_argument("--documents", default="file", help="as data.documents")
    parser.add_argument("--pairs", action="store_true", help="lines as pairs, not running text")
    args = parser.parse_args()
    config = "parallel_text" if args.pairs else "lm_from_text"
    vocabulary = "joint.model" if args.pairs else "text.json"
    files = files_of_pairs if args.pairs else files_of_text
    fixed = CONFIG | (TRANSLATION if args.pairs else LANGUAGE_MODEL)
    if not args.pairs:
        fixed["data.documents"] = args.documents
    shutil.rmtree(args.folder / "tokens", ignore_errors=True)
    small = drawn(args.folder / "1_mb", 1)
    learned = args.folder / "learned"
    shutil.rmtree(learned, ignore_errors=True)
    seconds(config, learned, fixed | files(small))
    print("| MB | first start, s | second, s | without a cache, s |")
    print("| ---: | ---: | ---: | ---: |")
    for size in map(int, args.megabytes.split(",")):
        changes = fixed | files(drawn(args.folder / f"{size}_mb", size))
        changes |= {"data.cache_dir": args.folder / "tokens", "tokenizer.kind": "file"}
        changes["tokenizer.path"] = learned / "tokenizer" / vocabulary
        runs = args.folder / f"runs_{size}"
        shutil.rmtree(runs, ignore_errors=True)
        first = seconds(config, runs / "first", changes)
        second = seconds(config, runs / "second", changes)
        without = seconds(config, runs / "without", changes | {"data.cache_dir": "none"})
        print(f"| {size} | {first:.1f} | {second:.1f} | {without:.1f} |", flush=True)


def files_of_text(text: Path) -> dict[str, object]:
    """Config fields for the files of a folder (language model)."""
    return {"data.train_text": text / "*.txt", "data.valid_text": text / "000.txt"}


def files_of_pairs(text: Path) -> dict[str, object]:
    """Config fields for the files of a folder (pairs)."""
    splits = {"train": "*.txt", "valid": "000.txt"}
    sides = ("source", "target")
    return {f"data.{name}_{side}": text / splits[name] for name in splits for side in sides}


def drawn(folder: Path, megabytes: int) -> Path:
    """Writes a folder of one-megabyte files of words with Zipf frequencies."""
    rng = np.random.default_rng(0)
    letters = rng.integers(ord("a"), ord("z") + 1, (20_000, 12), np.uint8)
    words = [bytes(row[: 2 + i % 9]).decode() for i, row in enumerate(letters)]
    chances = 1 / np.arange(1, len(words) + 1)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder / f"{number:03}.txt" for number in range(megabytes)):
        chosen = rng.choice(len(words), (12_000, 15), p=chances / chances.sum())
        if not path.exists():
            text = "".join(" ".join(words[i] for i in line) + "\n" for line in chosen)
            path.write_text(text[:MEGABYTE])
    return folder


def seconds(config: str, workdir: Path, changes: dict[str, object]) -> float:
    """Seconds from the start of the command to the end of its first step."""
    flags = [f"--config.{name}={value}" for name, value in changes.items()]
    command = [sys.executable, "-m", "transformer_jax", "train", f"--workdir={workdir}", *flags]
    started = time.time()
    path = ROOT / "configs" / f"{config}.py"
    subprocess.run([*command, f"--config={path}"], check=True, cwd=ROOT, stderr=sys.stderr)
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return float(next(record["time"] for record in records if record["split"] == "train")) - started


if __name__ == "__main__":
    main()

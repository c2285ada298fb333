# SPDX-License-Identifier: Apache-2.0
"""Trains tiny runs of every task in seconds, for the campaigns.

python tests/campaigns/faults/tiny_runs.py --workdir=runs/tiny
"""

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from campaign import Case, report, run

import transformer_jax as tj

QUICKEST = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"

CONFIGS = Path(__file__).parents[3] / "configs"
SMALL = {"model.d_model": 16, "model.d_ff": 32, "model.num_heads": 2, "model.dtype": "float32"}
SMALL |= {"optimizer.warmup_steps": 2, "train.num_steps": 4, "train.tokens_per_batch": 192}
SMALL |= {"eval.every_steps": 4, "decode.batch_size": 4, "logging.every_steps": 2}
SMALL |= {"checkpoint.every_steps": 2, "checkpoint.keep_params": 2}
ONE_STACK = {"model.num_layers": 1, "model.max_length": 32, "data.max_length": 32}
TWO_STACKS = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
WORDS = "the film is very good bad and dull fine ."
TEXTS = {
    "a.en": "The dog sees a cat.\nThe man sleeps.\nA woman walks home.\n" * 20,
    "a.de": "Der Hund sieht eine Katze.\nDer Mann schläft.\nEine Frau geht heim.\n" * 20,
    "plain": f"{WORDS}\n" * 20,
    "labels": "text\tlabel\n" + "the film is good\t1\nthe film is bad\t0\n" * 6,
    "pairs": "text\tpair\tlabel\n" + "a good film\tit is fine\t1\na film\tdull\t0\n" * 6,
    "tags": "the\tD\nfilm\tN\n\nis\tV\ngood\tA\n\n" * 4,
}
SPLITS = ("train", "valid", "test")
SHORT = {"decode.max_extra_length": 8}
RUNS = {
    "translation": ("quickstart", "", {"tokenizer.vocab_size": 40} | SHORT),
    "language_model": ("lm_from_text", "plain", {"data.documents": "line"} | SHORT),
    "masked_lm": ("bert_small", "plain", {"data.name": "text"}),
    "classifier": ("cola", "labels", {"data.name": "table"}),
    "pair_classifier": ("cola", "pairs", {"data.name": "table"}),
    "tagger": ("pos_gum", "tags", {"data.name": "tagged_words"}),
}
"""Config, text file and further fields of each run."""


def overrides(name: str, texts: Path) -> dict[str, object]:
    """Fields that shrink a run's config and set its text."""
    _, text, further = RUNS[name]
    if text:
        paths = {f"data.{split}_text": texts / text for split in SPLITS}
        fields = ONE_STACK | {"tokenizer.vocab_size": 60} | further
        if name == "language_model":
            fields |= {"tokenizer.kind": "char"}
    else:
        ends = (("source", "en"), ("target", "de"))
        paths = {f"data.{split}_{side}": texts / f"a.{e}" for split in SPLITS for side, e in ends}
        fields = TWO_STACKS | {"data.name": "parallel_text"} | further
    return SMALL | fields | {field: str(path.absolute()) for field, path in paths.items()}


def config_words(name: str, texts: Path, changes: Mapping[str, object] = {}) -> list[str]:
    """Words of a command line that set a run's config."""
    fields = overrides(name, texts) | changes
    config = f"--config={CONFIGS / RUNS[name][0]}.py"
    return [config, *(f"--config.{field}={value}" for field, value in fields.items())]


def write_texts(folder: Path) -> None:
    """Writes the texts of the runs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in TEXTS.items():
        (folder / name).write_text(text, encoding="utf-8")


def make(workdir: Path) -> None:
    """Trains missing runs in a separate process, so that this one starts no device."""
    if pid := os.fork():
        if os.waitpid(pid, 0)[1]:
            sys.exit("tiny runs: a training failed")
        return
    status = 1
    try:
        write_texts(workdir / "texts")
        for name, (config, *_) in RUNS.items():
            if not (workdir / name).exists():
                fields = overrides(name, workdir / "texts")
                tj.train(tj.config(CONFIGS / f"{config}.py", fields), workdir / name)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def drawn_by_number(
    about: str, folder: str, make: Callable[[Path], None], drawn: Callable[[Path, int], Case]
) -> int:
    """Command line of a campaign (`about`: its docstring) whose cases are numbered.

    `make` fills a folder of the workdir, from which `drawn(folder, number)` makes a case.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, type=Path, help=f"of the {folder} and cases")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case: its seed")
    args = parser.parse_args()
    base, cases = args.workdir.absolute() / folder, args.workdir / "cases"
    shutil.rmtree(cases, ignore_errors=True)  # failed cases of an earlier campaign
    os.environ |= {
        "XLA_FLAGS": QUICKEST,
        "JAX_COMPILATION_CACHE_DIR": str(args.workdir.absolute() / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    make(base)
    numbers = range(args.first, args.first + args.cases)
    return report(run(map(partial(drawn, base), numbers), cases), sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, type=Path)
    make(parser.parse_args().workdir)

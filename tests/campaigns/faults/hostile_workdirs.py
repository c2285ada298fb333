# SPDX-License-Identifier: Apache-2.0
"""Tests damaged workdirs: each must work or fail with a one-line error.

    python tests/campaigns/faults/hostile_workdirs.py --workdir=runs/hostile --cases=2000

Trains two tiny runs. Each case copies one, damages it at random (see `damage`), and uses it:
predict, evaluate, score, plot, resume, or initialize from it. The program must succeed or exit with
status 2 and one line, in bounded memory and time, and change nothing outside of the workdir (see
`campaign`). A case is determined by its number: `--first=N --cases=1` repeats one. Prints one JSON
object; exit status 1 if anything was wrong.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

os.environ.setdefault(  # compiling takes most of the time here
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_disable_hlo_passes=onednn-contraction-rewriter",
)

import campaign  # noqa: E402
import damage  # noqa: E402

CONFIG = Path(__file__).parents[3] / "configs" / "quickstart.py"
STEPS = 4
TINY = {
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.dtype": "float32",
    "data.num_train_examples": 200,
    "optimizer.warmup_steps": 2,
    "train.tokens_per_batch": 128,
    "eval.every_steps": 2,
    "decode.batch_size": 4,
    "decode.max_extra_length": 4,
    "checkpoint.every_steps": 2,
    "checkpoint.keep_params": 2,
    "logging.every_steps": 1,
}
LINES = b"The old man sees a dog.\nA boy.\n"
RUNS = {
    "translation": {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "tokenizer.vocab_size": 500,
        "data.name": "parallel_text",
        "data.train_source": "source",
        "data.train_target": "target",
        "data.valid_source": "source",
        "data.valid_target": "target",
        "data.test_source": "source",
        "data.test_target": "target",
        "eval.num_examples": 2,
    },
    "language_modeling": {
        "task.name": "language_modeling",
        "model.architecture": "decoder_only",
        "model.num_layers": 1,
        "tokenizer.kind": "byte_bpe",
        "tokenizer.vocab_size": 300,
        "data.name": "text",
        "data.train_text": "source",
        "data.valid_text": "source",
        "data.test_text": "source",
        "data.documents": "line",
        "data.packing": "apart",
        "data.max_length": 96,
        "decode.beam_size": 1,
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, type=Path, help="new; of runs and cases")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case: its seed")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    base = args.workdir.absolute() / "runs"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(base.parent / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    make_runs(base)
    cases = hostile_cases(base, range(args.first, args.first + args.cases))
    verdicts = campaign.run(cases, args.workdir / "cases", args.jobs)
    return campaign.report(verdicts, sys.stderr)


def make_runs(base: Path) -> None:
    """Trains the runs that the cases copy; writes their text."""
    from transformer_jax.data.config import DataConfig
    from transformer_jax.data.sources import open_split

    base.mkdir(parents=True, exist_ok=True)
    pairs = open_split(DataConfig(), "train")[:200]
    for side in ("source", "target"):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        (base / side).write_text(lines, encoding="utf-8")
        (base / f"few.{side}").write_text("".join(lines.splitlines(keepends=True)[:3]))
    for name in RUNS:
        if not (base / name).exists():
            words = train(base, name, base / "partial", STEPS)
            subprocess.run([sys.executable, "-m", "transformer_jax", *words], check=True)
            (base / "partial").rename(base / name)


def train(base: Path, name: str, workdir: Path | str, steps: int, **more: object) -> list[str]:
    """Command line that trains or resumes a run."""
    fields = {**TINY, **RUNS[name], **more, "train.num_steps": steps}
    for field, value in fields.items():
        if value in ("source", "target"):
            fields[field] = base / value
    flags = [f"--config.{field}={value}" for field, value in fields.items()]
    return ["train", f"--config={CONFIG}", f"--workdir={workdir}", *flags]


def uses(base: Path, name: str) -> dict[str, list[str]]:
    """Commands that use a workdir called `run`."""
    few = [f"--{side}={base}/few.{side}" for side in ("source", "target")]
    found = {
        "predict": ["predict", "--workdir=run"],
        "predict best": ["predict", "--workdir=run", "--checkpoint=best"],
        "predict average": ["predict", "--workdir=run", "--average=2"],
        "predict step": ["predict", "--workdir=run", f"--checkpoint={STEPS}", "--format=jsonl"],
        "train": train(base, name, "run", STEPS + 1),
        "train, finished": train(base, name, "run", STEPS),
        "train from": train(base, name, "fresh", 1, **{"train.init_from": "run"}),
        "plot": ["plot", "--workdir=run"],
        "seeds": [*train(base, name, "run", STEPS), "--seeds=2"],
    }
    if name == "translation":
        found["evaluate"] = ["evaluate", "--workdir=run", *few]
        found["score"] = ["score", "--workdir=run", *few]
    return found


def hostile_cases(base: Path, numbers: range) -> Iterator[campaign.Case]:
    """Cases of these numbers."""
    kinds, often = zip(*damage.KINDS, strict=True)
    for number in numbers:
        draw = random.Random(number)
        name = draw.choice(list(RUNS))
        kind = draw.choices(kinds, often)[0]
        use, argv = draw.choice(list(uses(base, name).items()))
        yield campaign.Case(
            f"{number}: {kind.__name__}, {use}",
            [campaign.Command(argv, stdin=LINES)],
            prepare=partial(prepare, run=base / name, kind=kind, draw=draw),
        )


def prepare(folder: Path, run: Path, kind: damage.Damage, draw: random.Random) -> None:
    """Copies a run, in half of the cases with only its newest checkpoint, and damages it."""
    shutil.copytree(run, folder / "run")
    (folder / "outside" / "it").write_text("the user's own")
    if draw.random() < 0.5:
        for older in sorted((folder / "run" / "checkpoints").glob(f"**/{STEPS // 2}")):
            shutil.rmtree(older)
    done = kind(folder / "run", folder / "outside", draw)
    (folder / "damage").write_text(f"{done!r}\n")


if __name__ == "__main__":
    sys.exit(main())

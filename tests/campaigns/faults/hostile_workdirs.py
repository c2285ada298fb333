# SPDX-License-Identifier: Apache-2.0
"""Tests damaged workdirs: each must work or fail with a one-line error.

    python tests/campaigns/faults/hostile_workdirs.py --workdir=runs/hostile --cases=2000

Each case copies a tiny run, damages it at random (see `damage`), and uses it: predict, evaluate,
score, plot, resume, or initialize from it. The program must succeed or exit with status 2 and one
line, and change nothing outside of the workdir (see `campaign`). A case is determined by its
number: `--first=N --cases=1` repeats one. Prints one JSON object; exit status 1 if anything was
wrong.
"""

import random
import shutil
import sys
from functools import partial
from pathlib import Path

import damage
import tiny_runs
from campaign import Case, Command

STEPS = tiny_runs.SMALL["train.num_steps"]
LINES = b"The old man sees a dog.\nA boy.\n"
TASKS = ("translation", "language_model")


def drawn(runs: Path, number: int) -> Case:
    """Draws the case of a number."""
    draw = random.Random(number)
    task = draw.choice(TASKS)
    kinds, often = zip(*damage.KINDS, strict=True)
    (kind,) = draw.choices(kinds, often)
    use, argv = draw.choice(list(commands(runs, task).items()))
    return Case(
        f"{number}: {kind.__name__}, {use}",
        [Command(argv, stdin=LINES)],
        prepare=partial(prepare, run=runs / task, kind=kind, draw=draw),
    )


def commands(runs: Path, task: str) -> dict[str, list[str]]:
    """Commands that use a workdir called `run`."""
    texts = runs / "texts"

    def train(workdir: str, steps: int) -> list[str]:
        changes = {"train.num_steps": steps}
        return ["train", f"--workdir={workdir}", *tiny_runs.config_words(task, texts, changes)]

    uses = {
        "predict": ["predict", "--workdir=run"],
        "predict best": ["predict", "--workdir=run", "--checkpoint=best"],
        "predict average": ["predict", "--workdir=run", "--average=2"],
        "predict step": ["predict", "--workdir=run", f"--checkpoint={STEPS}"],
        "train": train("run", STEPS + 1),
        "train, finished": train("run", STEPS),
        "train from": [*train("new", 1), "--config.train.init_from=run"],
        "plot": ["plot", "--workdir=run"],
        "seeds": [*train("run", STEPS), "--seeds=2"],
    }
    if task == "translation":
        files = [f"--source={texts}/a.en", f"--target={texts}/a.de"]
        uses |= {verb: [verb, "--workdir=run", *files] for verb in ("evaluate", "score")}
    return uses


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
    sys.exit(tiny_runs.drawn_by_number(__doc__, "runs", tiny_runs.make, drawn))

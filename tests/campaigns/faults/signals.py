# SPDX-License-Identifier: Apache-2.0
"""Tests that every command ends as documented after a signal, in every phase.

    python tests/campaigns/faults/signals.py --workdir=/tmp/signals --cases=200

Each case sends one signal at a random moment: in a phase of `train` (import, data, tokenizer,
compilation, steps, checkpoint, validation, end), or during another command. It must end with the
status in docs/pods.md, without a traceback, and leave no damaged checkpoint. Training is then
resumed and must reach exactly the metrics of an uninterrupted run. Prints the seconds from the
signals to the ends, and the report of the campaign.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import campaign
import tiny_runs
from campaign import Case, Command, Ended, report, run
from kill_resume import QUICK, RESUMABLE, SAVING, metrics, newest_record

from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.cli import terminal

CONFIG = Path(__file__).resolve().parents[3] / "configs" / "quickstart.py"
SMALL = tiny_runs.SMALL | tiny_runs.TWO_STACKS | tiny_runs.SHORT
SMALL |= {"data.synthetic_size": 400, "tokenizer.vocab_size": 800, "train.num_steps": 20}
SMALL |= {"eval.every_steps": 10, "eval.num_examples": 3}
SMALL |= {"checkpoint.every_steps": 5, "logging.every_steps": 1}
FIELDS = [f"--config.{name}={value}" for name, value in SMALL.items()]
TRAIN = ["train", f"--config={CONFIG}", *FIELDS, "--workdir=run"]
SWEEP = {"config": str(CONFIG), "rows": {"one": {}, "two": {"model.d_ff": 48}}, "seeds": 1}
LINES = "The old man sees a dog.\n" * 100
COMMANDS = {
    "train": Command(TRAIN),
    "train --seeds": Command([*TRAIN, "--seeds=2"]),
    "sweep": Command(["sweep", "--sweep=sweep.py", *FIELDS, "--workdir=run"]),
    "predict": Command(["predict", "--workdir=run"], stdin=LINES.encode()),
    "evaluate": Command(["evaluate", "--workdir=run", "--beam_size=1", "--split=valid"]),
    "score": Command(["score", "--workdir=run", "--source=lines", "--target=lines"]),
}
TRAINS = ("train", "train --seeds", "sweep")
ENDS = {
    signal.SIGINT: {terminal.INTERRUPTED},
    signal.SIGTERM: {-signal.SIGTERM},
    signal.SIGHUP: {-signal.SIGHUP},
    signal.SIGKILL: {-signal.SIGKILL},
}
"""Signals of users and schedulers -> exit statuses of a command that one ends."""
SECONDS = 60
"""Maximal seconds from a signal to the end."""

Phase = Callable[[Path], bool]
"""Returns True if the command in a folder has reached a phase."""


def told(words: str) -> Phase:
    """Condition: these words are on stderr."""

    def found(folder: Path) -> bool:
        path = folder / "0.err"
        return path.exists() and words in path.read_text(errors="replace")

    return found


def at_step(remainder: int, split: str) -> Phase:
    """Condition: the last record is of this split, at a step with this remainder modulo 10."""

    def reached(folder: Path) -> bool:
        last = newest_record(folder / "run")
        return bool(last) and last["step"] % 10 == remainder and last["split"] == split

    return reached


PHASES: dict[str, Phase] = {
    "import": told(" transformer_jax.cli"),
    "reading data": lambda folder: (folder / "started").exists(),
    "tokenizer": lambda folder: (folder / "run").exists(),
    "compiling": lambda folder: (folder / "run" / "config.json").exists(),
    "steps": at_step(3, "train"),
    "saving": lambda folder: any((folder / "run" / "checkpoints").glob(SAVING)),
    "validation": at_step(0, "train"),
    "the end": lambda folder: newest_record(folder / "run").get("step") == SMALL["train.num_steps"],
}
"""Condition of each phase of `train`."""


@dataclasses.dataclass
class Interruption:
    """A signal to the command of a case, to be sent some seconds after it has reached a phase.

    `began` and `sent` are the seconds from the start of the case to the phase and the signal.
    """

    how: signal.Signals
    reached: Phase
    after: float
    began: float | None = None
    sent: float | None = None

    def watch(self, pid: int, seconds: float, folder: Path) -> None:
        """Sends the signal when it is due."""
        if self.began is None and self.reached(folder):
            self.began = seconds
        if self.began is not None and self.sent is None and seconds >= self.began + self.after:
            self.sent = seconds
            os.kill(pid, self.how)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--workdir", required=True, type=Path, help="new")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default=",".join(COMMANDS), help="separated by commas")
    args = parser.parse_args()
    names = args.commands.split(",")
    workdir = args.workdir.absolute()
    (workdir / "stopped").mkdir(parents=True)
    campaign.SECONDS = 300  # since the start; since the signal, 60
    os.environ |= QUICK | {"XDG_CACHE_HOME": str(workdir / "cache")}
    trains = [name for name in COMMANDS if name in TRAINS and name in {*names, "train"}]
    others = [name for name in names if name not in TRAINS]
    whole = [*run(whole_runs(trains, workdir), workdir / "trained")]
    whole += run(whole_runs(others, workdir), workdir / "used")
    if any(verdict.wrong for verdict in whole):
        return report(whole, sys.stderr)
    seconds = {one.case.name: one.ended[0].seconds for one in whole}
    draw, waits = random.Random(args.seed), list[float]()
    cases = interrupted(names, args.cases, draw, seconds, waits, workdir)
    stopped = run(cases, workdir / "interrupted")
    resumed = run(gone_on_with(workdir), workdir / "gone_on_with")
    failed = report(itertools.chain(stopped, resumed), sys.stderr)
    parts = statistics.quantiles(waits or [0.0, 0.0], n=20, method="inclusive")
    told = {"signals": len(waits), "median": parts[9], "of_20_19": parts[18], "most": max(waits)}
    print(json.dumps({"seconds_to_the_end": told}))
    return failed


def whole_runs(names: Sequence[str], workdir: Path) -> Iterator[Case]:
    """Runs each command without a signal; training leaves the folder to compare with."""
    for name in names:
        prepare = functools.partial(fill, name, workdir)
        keep = functools.partial(keep_training, name, workdir)
        yield Case(name, [COMMANDS[name]], prepare, frozenset({0}), keep)


def keep_training(name: str, workdir: Path, folder: Path, ended: list[Ended]) -> list[str]:
    if name in TRAINS:
        shutil.move(folder / "run", workdir / name)
    return []


def fill(name: str, workdir: Path, folder: Path) -> None:
    """Prepares a command's folder: files, and a run if it uses one."""
    (folder / "sweep.py").write_text(f"def get_sweep():\n    return {SWEEP}\n")
    (folder / "lines").write_text(LINES)
    if name not in TRAINS:
        shutil.copytree(workdir / "train", folder / "run")


def interrupted(
    names: Sequence[str],
    count: int,
    draw: random.Random,
    seconds: Mapping[str, float],
    waits: list[float],
    workdir: Path,
) -> Iterator[Case]:
    """Cases: every phase of `train` and every other command in turn.

    `seconds` has the duration of each command without a signal; `waits` receives the seconds from
    each signal to the end of its command, `workdir/stopped` the stopped trainings.
    """
    kinds = [("train", phase) for phase in PHASES if "train" in names]
    kinds += [(name, "any moment") for name in names if name != "train"]
    for number, (name, phase) in zip(range(count), itertools.cycle(kinds), strict=False):
        how = draw.choice([*ENDS, signal.SIGINT, signal.SIGTERM])
        long = 0.8 * seconds[name] if phase == "any moment" else 1.0 if phase == "import" else 0.3
        due = Interruption(how, PHASES.get(phase, PHASES["reading data"]), draw.uniform(0, long))
        stopped = workdir / "stopped" / f"{number} {name}"
        allowed = {0} | ENDS[how]
        if name in TRAINS and how == signal.SIGTERM:
            allowed.add(RESUMABLE)
        yield Case(
            f"{number}: {name}, {phase} + {due.after:.2f} s, {how.name}",
            [started(COMMANDS[name], phase)],
            functools.partial(fill, name, workdir),
            frozenset(allowed),
            functools.partial(look, due=due, waits=waits, stopped=stopped),
            due.watch,
        )


def started(command: Command, phase: str) -> Command:
    """The command with a sign that it has started: a file, or for a new interpreter (which handles
    an early interrupt itself) the names of its imports."""
    if phase == "import":
        return dataclasses.replace(command, fresh=True, environ={"PYTHONPROFILEIMPORTTIME": "1"})
    caches = {"XDG_CACHE_HOME": "cache"} if phase == "compiling" else {}  # an empty one
    return dataclasses.replace(command, environ=caches, before=before_a_fork)


def before_a_fork() -> None:
    terminal.handle_interrupts()
    Path("started").touch()


def look(
    folder: Path, ended: list[Ended], *, due: Interruption, waits: list[float], stopped: Path
) -> list[str]:
    """Returns what is wrong after a signal; keeps trainings to resume them."""
    wrong = []
    if due.sent is not None:
        waits.append(ended[0].seconds - due.sent)
        wrong = [f"slow: {waits[-1]:.0f} s"] if waits[-1] > SECONDS else []
    for checkpoints in folder.glob("run/**/checkpoints"):
        for step, place in step_folders(checkpoints).items():
            if problem := manifest.find_damage(place):
                wrong.append(f"damage: step {step}: {problem}")
    if stopped.name.split(" ", 1)[1] in TRAINS and (folder / "run").exists():
        shutil.copytree(folder / "run", stopped)
    return wrong


def gone_on_with(workdir: Path) -> Iterator[Case]:
    """Cases that resume the stopped trainings."""
    for stopped in sorted((workdir / "stopped").iterdir()):
        name = stopped.name.split(" ", 1)[1]

        def prepare(folder: Path, stopped: Path = stopped, name: str = name) -> None:
            fill(name, workdir, folder)
            stopped.rename(folder / "run")

        def compare(folder: Path, ended: list[Ended], name: str = name) -> list[str]:
            whole, run = all_metrics(workdir / name), all_metrics(folder / "run")
            return [f"metrics: {path}" for path in whole if whole[path] != run.get(path)]

        yield Case(f"{stopped.name}, again", [COMMANDS[name]], prepare, frozenset({0}), compare)


def all_metrics(folder: Path) -> dict[str, list[dict]]:
    """Records of each run below a folder, without times."""
    paths = folder.rglob("metrics.jsonl")
    return {str(path.relative_to(folder)): metrics(path.parent) for path in paths}


if __name__ == "__main__":
    sys.exit(main())

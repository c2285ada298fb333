# SPDX-License-Identifier: Apache-2.0
"""Fuzzes command lines, inputs and environments: success, or a one-line error.

    python tests/campaigns/faults/fuzz_shell.py --workdir=runs/fuzz_shell --cases=2000

Each case is one shell command on a copy of a tiny finished run. Its words are damaged (repeated,
misspelled, of the wrong type, huge, not Unicode; paths of folders, links, devices, long names), as
are stdin, descriptors, environment, working directory and resource limits. It must succeed (and
write as many lines as it read), or exit with status 2 and a one-line error, without changing the
user's files. `campaign` lists the other requirements.
Prints one JSON object; exit status 1 if any case ended otherwise.
"""

import json
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import shell_pools as pools
import tiny_runs
from campaign import Case, Command, Ended

from transformer_jax.cli.parser import VERBS


def main() -> int:
    return tiny_runs.drawn_by_number(__doc__, "runs", tiny_runs.make, Drawn)


class Drawn:
    """Draws the case of each number."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs

    def __call__(self, number: int) -> Case:
        draw = random.Random(number)
        task = draw.choice([*tiny_runs.RUNS, "translation", "language_model"])
        words, stdin = self._words(draw, task), draw.choice(pools.INPUTS)
        surroundings, allowed = {}, {0}
        damaged = draw.random() < 0.65
        if damaged:
            words, allowed = _damaged(draw, words), {0, 2}
        if not damaged or draw.random() < 0.4:
            surroundings, further = draw.choice(SURROUNDINGS)(draw)
            allowed = allowed | further
        if not damaged and words[:2] == ["score", "--workdir=run"] and task != "translation":
            allowed = {2}
        if words[:1] == ["plan"]:
            allowed = allowed | {2}  # if the accelerator's compiler is not installed
        command = Command(words, **{"stdin": stdin, **surroundings})
        told = {name: value for name, value in surroundings.items() if name != "before"}
        name = f"{number}: {task}: {_short(words)} {_short(told) if told else ''}"
        counted = not {"before", "limits", "closed"} & surroundings.keys()
        return Case(
            name,
            [command],
            prepare=lambda folder: _prepare(folder, self._runs, task),
            allowed=frozenset(allowed),
            check=_Count(words, stdin) if counted else Case.check,
        )

    def _words(self, draw: random.Random, task: str) -> list[str]:
        """Draws a correct command line."""
        verb = draw.choices([*_VERBS], _VERBS.values())[0]
        fields = tiny_runs.overrides(task, self._runs / "texts")
        config = [f"--config={tiny_runs.CONFIGS / tiny_runs.RUNS[task][0]}.py"]
        config += [f"--config.{name}={value}" for name, value in fields.items()]
        match verb:
            case "train":
                return ["train", "--workdir=run", *config]
            case "dry":
                return ["train", "--dry_run", *config]
            case "score":
                files = ["--source=outside/a.en", "--target=outside/a.en"]
                return ["score", "--workdir=run", *files]
            case "plot":
                return ["plot", "--workdir=run", "--output=plot.png"]
            case "sweep":
                return ["sweep", "--sweep=outside/sweep.py", "--workdir=swept", *config]
            case "benchmark":
                return ["benchmark", "train", *config, "--steps=1"]
            case "plan":
                return ["plan", "--device=h100:8", *config]
            case "help":
                return [*draw.choice([[], *(name.split() for name in VERBS)]), "--help"]
        return [verb, "--workdir=run"]


_VERBS = {"predict": 50, "evaluate": 12, "score": 10, "train": 8, "plot": 6, "help": 5, "dry": 5}
_VERBS |= {"sweep": 3, "benchmark": 1, "plan": 2}


def _damaged(draw: random.Random, words: list[str]) -> list[str]:
    words = list(words)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        place = draw.randrange(len(words)) if words else 0
        match draw.randrange(10):
            case 0:
                del words[place : place + 1]
            case 1:
                words.insert(place, draw.choice([*pools.PATHS, *pools.NUMBERS]))
            case 2 if words:
                words.insert(place, words[place])
            case 3 if words and len(words[place]) > 2:
                middle = draw.randrange(len(words[place]))
                words[place] = words[place][:middle] + words[place][middle + 1 :]
            case _:
                words.append(_flag(draw, words[0] if words else ""))
    return [word.replace("\0", "") for word in words]


def _flag(draw: random.Random, verb: str) -> str:
    known = draw.random() < 0.8
    name = draw.choice(known and pools.FLAGS.get(verb) or sorted(pools.KINDS))
    value = draw.choice(pools.VALUES[pools.KINDS[name]])
    if pools.KINDS[name] == "numbers" and draw.random() < 0.4:
        value = draw.choice(pools.PLAUSIBLE)
    return f"--{name}" if value is None or draw.random() < 0.05 else f"--{name}={value}"


def _closed(draw: random.Random) -> tuple[dict, set[int]]:
    closed = draw.choice([(1,), (2,), (1, 2)])
    return {"closed": closed} | ({"stdin": None} if draw.random() < 0.3 else {}), {0, 2}


def _no_stdin(draw: random.Random) -> tuple[dict, set[int]]:
    return {"stdin": None}, {0, 2}


def _full(draw: random.Random) -> tuple[dict, set[int]]:
    descriptors = draw.choice([(1,), (2,), (1, 2)])
    return {"before": _Before("full", descriptors)}, {0, 2}


def _left(draw: random.Random) -> tuple[dict, set[int]]:
    return {"before": _Before("left", draw.choice([(1,), (2,), (1, 2)]))}, {0, 2, 141}


def _folder(draw: random.Random) -> tuple[dict, set[int]]:
    return {"before": _Before(draw.choice(["gone", "umask", "read_only"]))}, {0, 2}


def _limited(draw: random.Random) -> tuple[dict, set[int]]:
    kind, most = draw.choice(
        [
            *((resource.RLIMIT_FSIZE, size) for size in (0, 10, 1000, 100_000)),
            *((resource.RLIMIT_NOFILE, count) for count in (10, 16, 24, 40, 64)),
        ]
    )
    return {"limits": {kind: most}}, {0, 2}


def _harmless(draw: random.Random) -> tuple[dict, set[int]]:
    return {"environ": draw.choice(pools.HARMLESS)}, set()


def _locale(draw: random.Random) -> tuple[dict, set[int]]:
    return {"environ": draw.choice(pools.LOCALES), "fresh": True}, set()


def _hostile(draw: random.Random) -> tuple[dict, set[int]]:
    return {"environ": draw.choice(pools.HOSTILE), "fresh": True}, {0, 2}


SURROUNDINGS: list[Callable[[random.Random], tuple[dict, set[int]]]]
SURROUNDINGS = [_closed, _no_stdin, _limited, _locale, _hostile]
SURROUNDINGS += 3 * [_full, _left, _folder, _limited, _harmless]


class _Before:
    """Changes in the child before the command."""

    def __init__(self, what: str, descriptors: tuple[int, ...] = ()) -> None:
        self._what, self._descriptors = what, descriptors

    def __call__(self) -> None:
        for descriptor in self._descriptors:
            if self._what == "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)
            else:
                read, write = os.pipe()
                os.dup2(write, descriptor)
                os.close(read)
        if self._what == "umask":
            os.umask(0o777)
        if self._what == "gone":
            os.mkdir("gone")
            os.chdir("gone")
            os.rmdir("../gone")
        if self._what == "read_only":  # also for root
            os.chdir("/proc/self")


class _Count:
    """Requires of a successful command as many lines as it read."""

    def __init__(self, words: list[str], stdin: bytes) -> None:
        self._words, self._lines = words, stdin.count(b"\n") + (stdin[-1:] not in (b"", b"\n"))

    def __call__(self, folder: Path, ended: list[Ended]) -> list[str]:
        lines, wrong = ended[0].stdout.split("\n")[:-1], []
        plain = not any(word in ("--stream", "--help") for word in self._words)
        if ended[0].status or not plain:
            return []
        if self._words[0] == "predict" and len(lines) != self._lines:
            wrong.append(f"lines: {len(lines)} for {self._lines}")
        if self._words[0] == "evaluate" and not isinstance(json.loads(ended[0].stdout), dict):
            wrong.append("output: no object")
        return wrong


def _prepare(folder: Path, runs: Path, task: str) -> None:
    """Fills the folder of a case: a copy of the run, the user's files, and odd files."""
    shutil.copytree(runs / task, folder / "run")
    outside = folder / "outside"
    shutil.copytree(runs / "texts", outside, dirs_exist_ok=True)
    (outside / "own").mkdir()
    (outside / "own" / "config.json").write_text("mine")
    for name, content in pools.FILES.items():
        (outside / name).write_bytes(content)
    os.mkfifo(folder / "fifo")
    for name, target in (("dangling", "nowhere"), ("loop", "loop"), ("to_file", "outside/a.en")):
        (folder / name).symlink_to(target)
    (folder / "to_folder").symlink_to("outside/own")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 900 else f"{text[:900]}..."


if __name__ == "__main__":
    sys.exit(main())

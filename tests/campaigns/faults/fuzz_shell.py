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

import functools
import json
import os
import random
import resource
import shutil
import sys
from pathlib import Path

import tiny_runs
from campaign import Case, Command, Ended

from transformer_jax.cli.parser import VERBS

split = str.split
NO_TEXT = "\udcff\udc80"  # bytes that are not UTF-8, as Python passes them
PLAUSIBLE = ["1", "2", "3", "0.5"]
NUMBERS = [
    *PLAUSIBLE,
    *split("0 -1 7 1_0 1.5 1e5 1e999 -inf nan 0x10 1e-300 four none true \\ 100000"),
    *split("2147483647 2147483648 18446744073709551616 \N{ARABIC-INDIC DIGIT THREE}"),
    *("", " 3", "9" * 30, NO_TEXT),
]
PATHS = [
    *split(". run run/.. absent absent/deep fifo dangling loop to_file to_folder a\\b [ * --"),
    *(f"outside/{name}" for name in split("a.en own empty latin1 broken.gz nul crlf one")),
    *split("/dev/null /dev/full /dev/stdin /proc/self/nothing /proc/self/mem ~nobody/x"),
    *split("hf:a/b http://a/b run/checkpoints run/config.json"),
    *("", "two\nlines", "a" * 300, NO_TEXT, "ä\u2028"),
]
TEXTS = [
    *split(
        "latest best text jsonl xml test valid train tset beam greedy sample bem int8 int4 a | none"
    ),
    *split("h100:8 v5p:4x4x8 cpu h100:0 : plot.png new/plot.png json a..b a=0 a=nan"),
    *(f"outside/{name}.py" for name in ("good", "bad", "exits", "sweep")),
]
FEW = split("-1 0 1 4 5 six")
SLOW = {"seeds", "steps", "at_once", "config.train.num_steps"}
"""Flags whose large numbers would take too long."""
FIELDS = [
    *split("config.data.train_text config.train.init_from config.data.nmae config.model"),
    *split("config.seed config.model.d_model config.optimizer.learning_rate config.decode.top_p"),
    *split("config.train.num_steps workdri nonsense"),
]
LEFT_OUT = {"distributed", "coordinator", "num_processes", "process_id", "traceback"}
"""Flags of processes that wait for others, and that of tracebacks."""

LINE = b"The man sees the film .\n"
INPUTS = [
    *(LINE, LINE * 9, b"", b"\n", b"\n\n\n", b"no end", b"a\r\nb\r\n", b"\xef\xbb\xbfbom\n"),
    *(b"\xff\xfe\x00\n" * 3, b"\0\n\0", b"the [MASK] is [MASK]\n", b"the film\tis good\n"),
    *(b"word " * 40_000 + b"\n", b"\t\n"),
    *("漢字 \u2028 \x85 \N{GRINNING FACE}\n".encode(), rb"a\nb \\ \x" + b"\n"),
    "\udcff\n".encode("utf-8", "surrogatepass"),
]
HARMLESS: list[dict[str, str | None]] = [
    *({"COLUMNS": "0"}, {"COLUMNS": "x"}, {"HOME": None}, {"HOME": "/proc/nothing"}),
    *({"XDG_CACHE_HOME": "/dev/null"}, {"TRANSFORMER_JAX_DATA": "/dev/null"}, {"PATH": None}),
    *({"TMPDIR": "/proc/nothing"}, {"TERM": "nonsense"}, {"TQDM_DISABLE": "1"}),
]
LOCALES = [
    *({"LC_ALL": "C"}, {"LANG": "nonsense"}, {"PYTHONUTF8": "0", "LC_ALL": "C"}),
    *({"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONOPTIMIZE": "2"}),
]
HOSTILE = [
    *({"JAX_PLATFORMS": "cuda"}, {"JAX_PLATFORMS": "abacus"}, {"JAX_ENABLE_X64": "maybe"}),
    *({"XLA_FLAGS": "--nonsense"}, {"XLA_FLAGS": "/nothing"}, {"JAX_NUM_CPU_DEVICES": "x"}),
    *({"JAX_COMPILATION_CACHE_DIR": "/dev/null"}, {"JAX_NUM_CPU_DEVICES": "3"}),
    *({"JAX_DEFAULT_MATMUL_PRECISION": "x"}, {"JAX_LOG_COMPILES": "2"}, {"JAX_DEBUG_NANS": "1"}),
]
FILES = {
    "empty": b"",
    "latin1": b"sch\xf6n\n",
    "broken.gz": b"\x1f\x8b\x08broken",
    "one": LINE,
    "nul": b"\0" * 99,
    "crlf": b"a\r\nb\r\n",
    "good.py": b"x = 1\n",
    "bad.py": b"1 / 0\n",
    "exits.py": b"import sys\nsys.exit(0)\n",
    "sweep.py": b"def get_sweep():\n    return {'config': 'x', 'rows': {'a': {}}, 'seeds': 1}\n",
}
"""The user's files, in `outside/`."""


def drawn(runs: Path, number: int) -> Case:
    """Draws the case of a number."""
    draw = random.Random(number)
    task = draw.choice([*tiny_runs.RUNS, "translation", "language_model"])
    words, stdin = _words(draw, task, runs), draw.choice(INPUTS)
    surroundings, allowed = {}, {0}
    damaged = draw.random() < 0.65
    if damaged:
        words, allowed = _damaged(draw, words), {0, 2}
    if not damaged or draw.random() < 0.4:
        surroundings, further = draw.choice(SURROUNDINGS)(draw)
        allowed = allowed | further
    scores = task in ("translation", "language_model")
    if not damaged and words[:2] == ["score", "--workdir=run"] and not scores:
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
        prepare=lambda folder: _prepare(folder, runs, task),
        allowed=frozenset(allowed),
        check=functools.partial(_check, words, stdin) if counted else Case.check,
    )


def _words(draw: random.Random, task: str, runs: Path) -> list[str]:
    """Draws a correct command line."""
    verb = draw.choices([*_VERBS], _VERBS.values())[0]
    config = tiny_runs.config_words(task, runs / "texts")
    if verb == "help":
        return [*draw.choice([[], *(name.split() for name in VERBS)]), "--help"]
    commands = {
        "train": ["train", "--workdir=run", *config],
        "dry": ["train", "--dry_run", *config],
        "score": split("score --workdir=run --source=outside/a.en --target=outside/a.en"),
        "plot": split("plot --workdir=run --output=plot.png"),
        "sweep": ["sweep", "--sweep=outside/sweep.py", "--workdir=swept", *config],
        "benchmark": ["benchmark", "train", *config, "--steps=1"],
        "plan": ["plan", "--device=h100:8", *config],
    }
    return commands.get(verb, [verb, "--workdir=run"])


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
                words.insert(place, draw.choice([*PATHS, *NUMBERS]))
            case 2 if words:
                words.insert(place, words[place])
            case 3 if words and len(words[place]) > 2:
                middle = draw.randrange(len(words[place]))
                words[place] = words[place][:middle] + words[place][middle + 1 :]
            case _:
                words.append(_flag(draw, words[0] if words else ""))
    return [word.replace("\0", "") for word in words]


def _flag(draw: random.Random, verb: str) -> str:
    verb = "benchmark train" if verb == "benchmark" else verb
    known = [VERBS[verb]] if verb in VERBS and draw.random() < 0.8 else [*VERBS.values()]
    flags = {name: flag for one in known for name, flag in one.flags.items()}
    name = draw.choice(sorted({*flags, *FIELDS} - LEFT_OUT))
    flag = flags.get(name)
    if flag and " " not in flag.spelling:
        return f"--{name}"
    numbers = draw.choice([NUMBERS, NUMBERS, PLAUSIBLE])
    is_number = flag and flag.spelling.endswith((" INT", " FLOAT"))
    values = numbers if is_number else draw.choice([PATHS, TEXTS, numbers])
    values = FEW if name in SLOW else [value for value in values if value != "fifo"]
    return f"--{name}={draw.choice(values)}"


def _closed(draw: random.Random) -> tuple[dict, set[int]]:
    closed = draw.choice([(), (1,), (2,), (1, 2)])
    return {"closed": closed} | ({} if closed and draw.random() < 0.7 else {"stdin": None}), {0, 2}


def _redirected(draw: random.Random) -> tuple[dict, set[int]]:
    change = draw.choice(["full", "left"])
    before = functools.partial(_redirect, change, draw.choice([(1,), (2,), (1, 2)]))
    return {"before": before}, {0, 2, 141} if change == "left" else {0, 2}


def _redirect(change: str, descriptors: tuple[int, ...]) -> None:
    """Connects descriptors with a full device, or with a pipe that nobody reads."""
    for descriptor in descriptors:
        if change == "full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), descriptor)
        else:
            read, write = os.pipe()
            os.dup2(write, descriptor)
            os.close(read)


def _folder(draw: random.Random) -> tuple[dict, set[int]]:
    before = draw.choice([_enter_deleted, _deny_all, _enter_read_only])
    return {"before": before}, {0, 2}


def _enter_deleted() -> None:
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")


def _deny_all() -> None:
    os.umask(0o777)


def _enter_read_only() -> None:
    os.chdir("/proc/self")  # also for root


def _limited(draw: random.Random) -> tuple[dict, set[int]]:
    sizes = [(resource.RLIMIT_FSIZE, size) for size in (0, 10, 1000, 100_000)]
    counts = [(resource.RLIMIT_NOFILE, count) for count in (10, 16, 24, 40, 64)]
    return {"limits": dict([draw.choice(sizes + counts)])}, {0, 2}


def _environ(draw: random.Random) -> tuple[dict, set[int]]:
    environs, allowed = draw.choice([(HARMLESS, set()), (LOCALES, set()), (HOSTILE, {0, 2})])
    return {"environ": draw.choice(environs), "fresh": environs is not HARMLESS}, allowed


SURROUNDINGS = [_closed, _redirected, _redirected, _folder, _limited, _environ]


def _check(words: list[str], stdin: bytes, folder: Path, ended: list[Ended]) -> list[str]:
    """Requires of a successful command as many lines as it read."""
    if ended[0].status or {"--stream", "--help"} & {*words}:
        return []
    num_read = stdin.count(b"\n") + (stdin[-1:] not in (b"", b"\n"))
    num_written = ended[0].stdout.count("\n")
    if words[0] == "predict" and num_written != num_read:
        return [f"lines: {num_written} for {num_read}"]
    if words[0] == "evaluate" and not isinstance(json.loads(ended[0].stdout), dict):
        return ["output: no object"]
    return []


def _prepare(folder: Path, runs: Path, task: str) -> None:
    """Fills the folder of a case: a copy of the run, the user's files, and odd files."""
    shutil.copytree(runs / task, folder / "run")
    outside = folder / "outside"
    shutil.copytree(runs / "texts", outside, dirs_exist_ok=True)
    (outside / "own").mkdir()
    (outside / "own" / "config.json").write_text("mine")
    for name, content in FILES.items():
        (outside / name).write_bytes(content)
    os.mkfifo(folder / "fifo")
    for name, target in (("dangling", "nowhere"), ("loop", "loop"), ("to_file", "outside/a.en")):
        (folder / name).symlink_to(target)
    (folder / "to_folder").symlink_to("outside/own")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 900 else f"{text[:900]}..."


if __name__ == "__main__":
    sys.exit(tiny_runs.drawn_by_number(__doc__, "runs", tiny_runs.make, drawn))

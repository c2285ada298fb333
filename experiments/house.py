"""What it takes to understand the code, counted: to compare two versions of this repository.

    python experiments/house.py
    python experiments/house.py --root=OTHER_CHECKOUT --json

Counts, over the checkout at --root:

- Routes: the package's functions that are on the stack, and the files that they stand in, when the
  compiled training step is first called (`train`), when the compiled search is first called
  (`predict`) and when the first example is packed (counted from the start of the thread that packs
  it). They come from a tiny run of `configs/quickstart.py` in a temporary folder.
- Rooms: the entries at the top level of the package.
- Parameters: the longest parameter list of a function or method, without self and cls.
- Copies: runs of 10 or more lines that stood before, in the same file or in another, over the
  package, configs, tests and experiments. Lines are compared without their indentation; blank lines
  and imports are left out. A run that stands twice counts once.
- The model: lines of code, without comments, docstrings and blank lines, of nn/, models/ and the
  modules losses, schedules, step and loop.

Parts are found by the names of functions and files, so that it also works where modules have moved.
Prints one table, or with --json one object that also lists the functions of each route and where
each copy stands.
"""

import argparse
import ast
import contextlib
import dataclasses
import io
import json
import os
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

PACKAGE = "transformer_jax"
COMPARED = (PACKAGE, "configs", "tests", "experiments")
RUN_LENGTH = 10
MODEL_ROOMS = ("nn", "models")
MODEL_MODULES = ("losses.py", "schedules.py", "step.py", "loop.py")

TINY = {
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "data.num_train_examples": 400,
    "tokenizer.vocab_size": 800,
    "train.num_steps": 2,
    "train.tokens_per_batch": 192,
    "eval.num_examples": 3,
    "decode.max_extra_length": 4,
}
"""What makes the quick start's config a run of seconds."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The function at the end of a route.

    Attributes:
      verb: of the command line that leads there.
      function: its qualified name.
      file: the name of the file that it stands in.
      through: the name of a file that must be on the stack, too.
      cut: the name of a file of jax; the route ends where it is entered.
      start: what the stack begins with.
    """

    verb: str
    function: str
    file: str
    through: str | None = None
    cut: str | None = None
    start: str = "the shell"


TARGETS = {
    "a training step": Target("train", "Compiled.__call__", "stages.py", through="loop.py"),
    "a predicted line": Target("predict", "beam_search", "beam_search.py", cut="pjit.py"),
    "a packed example": Target("train", "PackedRows.add", "packing.py", start="the packing thread"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="a checkout")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of a table")
    args = parser.parse_args()
    root = args.root.resolve()
    counts = {"routes": measure_routes(root), **static_counts(root)}
    print(json.dumps(counts, indent=1) if args.json else as_table(counts))


def as_table(counts: dict) -> str:
    """The counts as a Markdown table."""
    longest, copies = counts["longest_parameters"], counts["copies"]
    rows = [
        (
            f"from {TARGETS[name].start} to {name}",
            f"{len(route)} functions in {len(set_of_files(route))} files",
        )
        for name, route in counts["routes"].items()
    ]
    rows += [
        ("entries at the top of the package", str(counts["rooms"])),
        ("longest parameter list", f"{longest['count']} (`{longest['function']}`)"),
        (f"runs of {RUN_LENGTH} or more lines that stood before", f"{len(copies)}"),
        ("lines of code to understand the model", f"{counts['model_lines']:,}"),
    ]
    lines = [f"| {what} | {seen} |" for what, seen in rows]
    return "\n".join(["| what | count |", "| --- | --- |", *lines])


def set_of_files(route: list[str]) -> set[str]:
    return {entry.split(":")[0] for entry in route}


# Routes: a tiny run, and what is on the stack.


def measure_routes(root: Path) -> dict[str, list[str]]:
    """Trains and predicts in this process: {what is reached: "file:function", from outside in}."""
    sys.path.insert(0, str(root))
    import transformer_jax
    from transformer_jax.cli.main import main as command_line

    assert Path(transformer_jax.__file__).is_relative_to(root)
    flags = [f"--config.{name}={value}" for name, value in TINY.items()]
    config = f"--config={root / 'configs' / 'quickstart.py'}"
    routes: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines")
        lines.write_text("The old man sees a dog.\n")
        with lines.open() as source, open(os.devnull, "w") as sink, replaced(source, sink):
            for verb, words in (("train", [config, *flags]), ("predict", [])):
                with watch(root, verb, routes):
                    status = command_line([verb, f"--workdir={folder}/run", *words])
                if status:
                    raise SystemExit(f"error: {verb} ended with status {status}")
    if missing := TARGETS.keys() - routes.keys():
        raise SystemExit(f"error: never reached: {', '.join(sorted(missing))}")
    return {name: routes[name] for name in TARGETS}


@contextlib.contextmanager
def replaced(stdin: io.TextIOBase, stdout: io.TextIOBase) -> Iterator[None]:
    """The process reads and writes these files in place of its own."""
    own = sys.stdin
    sys.stdin = stdin
    try:
        with contextlib.redirect_stdout(stdout):
            yield
    finally:
        sys.stdin = own


@contextlib.contextmanager
def watch(root: Path, verb: str, routes: dict[str, list[str]]) -> Iterator[None]:
    """Adds the routes to a verb's targets, in any thread, as each is reached for the first time."""
    targets = {name: target for name, target in TARGETS.items() if target.verb == verb}
    events, tool = sys.monitoring.events, sys.monitoring.PROFILER_ID

    def started(code: CodeType, _: int) -> object:
        matched = False
        for name, target in targets.items():
            if code.co_qualname == target.function and Path(code.co_filename).name == target.file:
                matched = True
                stack = stack_of(sys._getframe(1))
                if name not in routes and passes(stack, target):
                    routes[name] = route(stack, root / PACKAGE, target.cut)
        return None if matched else sys.monitoring.DISABLE  # of others, not even told again

    sys.monitoring.use_tool_id(tool, "house")
    sys.monitoring.register_callback(tool, events.PY_START, started)
    sys.monitoring.set_events(tool, events.PY_START)
    sys.monitoring.restart_events()
    try:
        yield
    finally:
        sys.monitoring.set_events(tool, events.NO_EVENTS)
        sys.monitoring.free_tool_id(tool)


def stack_of(frame: FrameType | None) -> list[CodeType]:
    """The code of a frame and of its callers, from the outermost in."""
    found = []
    while frame is not None:
        found.append(frame.f_code)
        frame = frame.f_back
    return found[::-1]


def passes(stack: list[CodeType], target: Target) -> bool:
    """Whether the stack goes through the file that the target asks for."""
    names = {Path(code.co_filename).name for code in stack}
    return target.through is None or target.through in names


def route(stack: list[CodeType], package: Path, cut: str | None) -> list[str]:
    """The functions of the package on the stack, up to where the file `cut` is entered."""
    found = []
    for code in stack:
        path = Path(code.co_filename)
        if path.name == cut:
            break
        if path.is_relative_to(package):
            found.append(f"{path.relative_to(package)}:{code.co_qualname}")
    return found


# What stands in the files.


def static_counts(root: Path) -> dict:
    """All counts that need no run."""
    package = root / PACKAGE
    return {
        "rooms": count_rooms(package),
        "longest_parameters": longest_parameters(package),
        "copies": find_copies(root),
        "model_lines": sum(map(code_lines, model_files(package))),
    }


def count_rooms(package: Path) -> int:
    """Files and folders at the top of the package."""
    return sum(path.name != "__pycache__" for path in package.iterdir())


def longest_parameters(package: Path) -> dict:
    """The function or method with the most parameters, and how many; the first of equals."""
    found = {}
    for path in python_files(package):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(package)}:{node.name}"
                found[name] = max(found.get(name, 0), num_parameters(node.args))
    name = max(found, key=found.__getitem__)
    return {"function": name, "count": found[name]}


def num_parameters(given: ast.arguments) -> int:
    """Without self and cls; *args and **kwargs are one each."""
    positional = [arg.arg for arg in (*given.posonlyargs, *given.args)]
    own = positional[:1] in (["self"], ["cls"])
    return (
        len(positional) - own + len(given.kwonlyargs) + sum(map(bool, (given.vararg, given.kwarg)))
    )


def find_copies(root: Path) -> list[dict]:
    """Runs of RUN_LENGTH or more lines that stood before: where, as where, and how many lines."""
    seen: dict[tuple[str, ...], tuple[Path, int, int]] = {}
    found: list[dict] = []
    for path in (path for folder in COMPARED for path in python_files(root / folder)):
        numbers, lines = comparable_lines(path)
        last = None  # where the newest run of this file began to be the same for RUN_LENGTH lines
        for start in range(len(lines) - RUN_LENGTH + 1):
            here = (path, start, numbers[start])
            before = seen.setdefault(tuple(lines[start : start + RUN_LENGTH]), here)
            if before[0] == path and start < before[1] + RUN_LENGTH:
                continue  # itself, or an overlap with itself
            if last == start - 1:
                found[-1]["lines"] += 1
            else:
                at, original = (f"{p.relative_to(root)}:{n}" for p, _, n in (here, before))
                found.append({"at": at, "as": original, "lines": RUN_LENGTH})
            last = start
    return found


def comparable_lines(path: Path) -> tuple[list[int], list[str]]:
    """The lines of a file, stripped, without blank lines and imports; their numbers come first."""
    source = path.read_text()
    imports = {
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    lines = {number: line.strip() for number, line in enumerate(source.splitlines(), 1)}
    kept = [number for number, line in lines.items() if line and number not in imports]
    return kept, [lines[number] for number in kept]


def model_files(package: Path) -> list[Path]:
    """What a researcher reads to understand the model and how it is trained."""
    rooms = {path for room in MODEL_ROOMS for path in python_files(package / room)}
    return sorted(rooms | {path for path in python_files(package) if path.name in MODEL_MODULES})


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments and docstrings."""
    source = path.read_text()
    nothing = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*nothing, tokenize.ENDMARKER):
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if is_bare_string(node):
            found -= set(range(node.lineno, node.end_lineno + 1))
    return len(found)


def is_bare_string(node: ast.AST) -> bool:
    """A docstring, of a module, class, function or attribute."""
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


if __name__ == "__main__":
    main()

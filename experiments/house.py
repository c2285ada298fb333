"""What it takes to understand the code, counted: to compare two versions of this repository.

    python experiments/house.py
    python experiments/house.py --root=OTHER_CHECKOUT --json

Counts, in the checkout at --root:

- Routes (`routes.py`): the package's functions on the stack, and their files, when the compiled
  training step is first called (`train`), when the compiled search is first called (`predict`), and
  when the first example is packed (from the start of the packing thread). They are measured in a
  tiny run of `configs/quickstart.py` in a temporary folder.
- Rooms: the entries at the top level of the package.
- Parameters: the longest parameter list of a function or method, without self and cls.
- Copies: runs of 10 or more lines that stood before, in the same file or in another, over the
  package, configs, tests and experiments. Lines are compared without their indentation; blank lines
  and imports are left out. A run that stands twice counts once.
- The model: lines of code, without comments, docstrings and blank lines, of nn/, models/ and the
  modules losses, schedules, step and loop.

Parts are found by the names of functions and files, so modules may move between the two versions.
Prints one table, or with --json one object that also lists the functions of each route and where
each copy stands.
"""

import argparse
import ast
import io
import json
import tokenize
from pathlib import Path

from routes import PACKAGE, TARGETS, measure_routes

COMPARED = (PACKAGE, "configs", "tests", "experiments")
RUN_LENGTH = 10
MODEL_ROOMS = ("nn", "models")
MODEL_MODULES = ("losses.py", "schedules.py", "step.py", "loop.py")


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
    rows = []
    for name, route in counts["routes"].items():
        files = {function.split(":")[0] for function in route}
        what = f"from {TARGETS[name].start} to {name}"
        rows.append((what, f"{len(route)} functions in {len(files)} files"))
    rows += [
        ("entries at the top of the package", str(counts["rooms"])),
        ("longest parameter list", f"{longest['count']} (`{longest['function']}`)"),
        (f"runs of {RUN_LENGTH} or more lines that stood before", f"{len(copies)}"),
        ("lines of code to understand the model", f"{counts['model_lines']:,}"),
    ]
    lines = [f"| {what} | {seen} |" for what, seen in rows]
    return "\n".join(["| what | count |", "| --- | --- |", *lines])


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
    if positional[:1] in (["self"], ["cls"]):
        del positional[0]
    collected = [arg for arg in (given.vararg, given.kwarg) if arg]
    return len(positional) + len(given.kwonlyargs) + len(collected)


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

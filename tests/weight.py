# SPDX-License-Identifier: Apache-2.0
"""Prints what the code weighs: lines, files that a command runs, calls, and closures of imports.

    make weight
    python -m tests.weight --cases --json

- Code: lines without blanks, comments, docstrings and other texts that stand alone.
- Executed: files of the package of which any code runs, in a notebook; imported files count, as an
  import runs the body of a module. Called: those of which a function runs outside of all imports.
- Moves: changes of file in the trace of `tj.config` with one override, counted at each call of and
  return to a function of the package; calls through a library count as direct ones.
- Closure: files that an import brings with it, imports inside functions counted, `__init__.py` not.
"""

import argparse
import ast
import collections
import inspect
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize

from tests.imports import PACKAGE, PATHS, ROOT, files_of_closure, is_part_of, tree

CONFIG = "configs/quickstart.py"
READS = ("build_settings", "chosen_names")
CLOSURES = ("training.step", "nn.attention", "runs.train")
PARTS = (PACKAGE, "tests", "tests.campaigns", "experiments", "docs.recipes")
BLANK = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
IN_PACKAGE = f"{ROOT / PACKAGE}{os.sep}"


def num_lines(paths):
    return sum(len(path.read_bytes().splitlines()) for path in paths)


def num_code_lines(path):
    text = path.read_text(encoding="utf-8")
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in BLANK and token.string:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def sizes():
    """Files, lines and code lines of the parts of the repository, each without those below it."""
    rows = {}
    for part in PARTS:
        others = [other for other in PARTS if is_part_of(other, part) and other != part]
        modules = [name for name in PATHS if is_part_of(name, part)]
        paths = [PATHS[name] for name in modules if not is_part_of(name, *others)]
        code = sum(map(num_code_lines, paths))
        row = {"files": len(paths), "lines": num_lines(paths), "code": code}
        rows[part.replace(".", "/")] = row
    data = [path for path in (ROOT / PACKAGE).rglob("*.*") if path.suffix not in (".py", ".pyc")]
    text = [path for path in data if path.suffix != ".gz"]
    rows["data of the package"] = {"files": len(data), "lines": num_lines(text)}
    return rows


def closures():
    files = {name: files_of_closure(f"{PACKAGE}.{name}") for name in CLOSURES}
    rows = {name: {"files": len(paths), "lines": num_lines(paths)} for name, paths in files.items()}
    return {name.replace(".", "/"): row for name, row in rows.items()}


def num_cases(folder):
    """Number of test cases that pytest collects in a folder."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", folder]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    collected = re.search(r"^(\d+) tests? collected", output, re.MULTILINE)
    return int(collected[1]) if collected else 0


def train(workdir, num_steps=20):
    """Trains the model of the tests on the embedded task."""
    import transformer_jax as tj
    from transformer_jax.runs.config import resolve_file

    statements = map(ast.unparse, tree("tests.conftest").body)
    tiny = next(text for text in statements if text.startswith("TINY ="))
    half = dict.fromkeys(["eval.every_steps", "checkpoint.every_steps"], num_steps // 2)
    data = {"data.name": "synthetic_en_de", "data.synthetic_size": 400}
    overrides = {**eval(tiny.removeprefix("TINY =")), **data, **half, "train.num_steps": num_steps}
    # As the verb `train` does; `tj.config` gives a ConfigDict, which is read again.
    tj.train(resolve_file(CONFIG, overrides), workdir)


def predict(workdir):
    import transformer_jax as tj

    tj.load(workdir).predict(["the old man sees a dog ."])


def count_executed(run, *arguments):
    """Files and functions of the package that a function runs, and its calls of `READS`."""
    executed = collections.defaultdict(set)
    called = set()
    reads = collections.Counter()
    monitoring = sys.monitoring

    def record(code, _):
        if not code.co_filename.startswith(IN_PACKAGE):
            return monitoring.DISABLE
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # no body of a module or a class
        executed[code.co_filename] |= {code} if is_function else set()
        reads.update({code.co_name} & set(READS))
        frame = sys._getframe(1)
        while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is None:
            called.add(code.co_filename)
        return monitoring.DISABLE if frame is None and code.co_name not in READS else None

    monitoring.use_tool_id(monitoring.PROFILER_ID, "weight")
    monitoring.register_callback(monitoring.PROFILER_ID, monitoring.events.PY_START, record)
    monitoring.set_events(monitoring.PROFILER_ID, monitoring.events.PY_START)
    run(*arguments)
    monitoring.set_events(monitoring.PROFILER_ID, 0)
    counts = {"files": len(executed), "called": len(called)}
    counts["functions"] = sum(map(len, executed.values()))
    return {"executed": counts, "reads": {name: {"calls": n} for name, n in sorted(reads.items())}}


def count_moves():
    """Changes of file in the trace of `tj.config` with one override, and the number of files."""
    import transformer_jax as tj
    import transformer_jax.runs.config  # only calls are counted

    trace = []

    def record(frame, event, _):
        frame = frame.f_back if event == "return" else frame
        if event in ("call", "return") and frame.f_code.co_filename.startswith(IN_PACKAGE):
            trace.append(frame.f_code.co_filename)

    sys.setprofile(record)
    tj.config(CONFIG, {"optimizer.learning_rate": 0.001})
    sys.setprofile(None)
    moves = sum(before != after for before, after in itertools.pairwise(["", *trace]))
    return {"moves": moves, "files": len(set(trace))}


def in_a_process(call):
    """What a call of this module gives in a process that has imported nothing yet."""
    code = f"import json, tests.weight as weight; print(json.dumps(weight.{call}))"
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if child.returncode:
        sys.exit(child.stderr)
    return json.loads(child.stdout.splitlines()[-1])


def weigh(with_cases):
    """All figures: {table: {row: {column: number}}}."""
    with tempfile.TemporaryDirectory() as folder:
        training = in_a_process(f"count_executed(weight.train, {folder + '/run'!r})")
        prediction = in_a_process(f"count_executed(weight.predict, {folder + '/run'!r})")
    commands = {"predict of one line": prediction, "train of 20 steps": training}
    tables = {
        "size": sizes(),
        "executed": {name: counts["executed"] for name, counts in commands.items()},
        "reads of the config in train": training["reads"],
        "to set a field": {"moves between files": in_a_process("count_moves()")},
        "closure": closures(),
    }
    if with_cases:
        cases = {part: num_cases(part) for part in ("tests", "tests/campaigns")}
        cases["tests"] -= cases["tests/campaigns"]
        for part, number in cases.items():
            tables["size"][part]["cases"] = number
    return tables


def as_text(tables):
    width = max(len(name) for table in tables.values() for name in table)
    lines = []
    for title, table in tables.items():
        columns = list(dict.fromkeys(column for row in table.values() for column in row))
        lines.append(f"{title:{width}}" + "".join(f"{column:>11}" for column in columns))
        for name, row in table.items():
            cells = [f"{row[column]:,}" if column in row else "" for column in columns]
            lines.append(f"{name:{width}}" + "".join(f"{cell:>11}" for cell in cells))
        lines.append("")
    return "\n".join(line.rstrip() for line in lines[:-1])


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.weight", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cases", action="store_true", help="count test cases too (a minute)")
    args = parser.parse_args()
    tables = weigh(args.cases)
    print(json.dumps(tables) if args.json else as_text(tables))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Draws mutations of the package, and finds out which tests notice them.

    python -m tests.mutations --number=30 --seed=1 --list > mutations.jsonl
    python -m tests.mutations --from=mutations.jsonl --limit=900 > outcomes.jsonl
    python -m tests.mutations --from=mutations.jsonl --tree=../before > outcomes_before.jsonl

A mutation changes one place: a sign, a constant, a comparison, or a statement that is dropped; none
is in a docstring, an annotation, an error's message or a log. The tests of `tests.changed` run in a
copy of the tree, nearest first, until one fails that passes without the mutation. "limit reached":
neither that nor the end came within --limit seconds of CPU time, so nothing is known.
"""

import argparse
import ast
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.changed import rounds
from tests.imports import OF_PACKAGE, PATHS, ROOT

SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
COMPARISONS = {
    **{ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")},
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in")},
    **{ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is")},
}
DROPPED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Return)
SKIPPED_FIELDS = {"annotation", "returns", "type_params", "exc", "msg"}
_stamps = itertools.count(int(time.time()) + 10, 10)


def candidates(module):
    """All mutations of a module: dictionaries with file, line, start, kind, before, after."""
    text = PATHS[module].read_bytes()
    starts = [0, *(found.end() for found in re.finditer(rb"\n", text))]
    place = PATHS[module].relative_to(ROOT).as_posix()

    def mutation(kind, begin, end, before, after):
        """A change in text[begin:end], which holds `before` once."""
        start = text.index(before.encode(), begin, end)
        line = text.count(b"\n", 0, start)
        source = text[starts[line] :].split(b"\n")[0].decode().strip()
        indent = len(text[starts[line] :]) - len(text[starts[line] :].lstrip(b" "))
        row = {"file": place, "line": line + 1, "source": source, "kind": kind}
        return row | {"column": start - starts[line] - indent, "before": before, "after": after}

    def span(node):
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[node.end_lineno - 1] + node.end_col_offset

    def mutations(node, in_function):
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SIGNS:
                yield mutation("sign", span(left)[1], span(right)[0], *SIGNS[type(op)])
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield mutation("comparison", span(left)[1], span(right)[0], *COMPARISONS[type(op)])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                yield mutation("sign", span(node)[0], span(operand)[0], "-", "+")
            case ast.Constant(value=bool() | int() | float() as value):
                before = text[slice(*span(node))].decode()
                after = not value if isinstance(value, bool) else value + (abs(value) or 1)
                yield mutation("constant", *span(node), before, repr(after))
        if in_function and isinstance(node, DROPPED):
            before = text[slice(*span(node))].decode()
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not is_text and not before.startswith("logger."):
                yield mutation("statement", *span(node), before, "pass")

    def walk(node, in_function):
        yield from mutations(node, in_function)
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        is_log = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger.")
        for field, value in ast.iter_fields(node):
            skipped = field in SKIPPED_FIELDS or is_log or isinstance(node, ast.JoinedStr)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not skipped:
                    yield from walk(child, in_function)

    return list(walk(ast.parse(text), False))


def draw(number, seed):
    """Mutations at random: a kind, then one of all its places in the package."""
    rng = random.Random(seed)
    by_kind = {}
    for module in OF_PACKAGE:
        for mutation in candidates(module):
            by_kind.setdefault(mutation["kind"], []).append(mutation)
    return [rng.choice(by_kind[rng.choice(sorted(by_kind))]) for _ in range(number)]


def mutated(text, mutation):
    """A file with a mutation; None if it has no such place. In another version of the file, the
    place is in the nearest line that reads the same."""
    lines = text.split(b"\n")
    same = [i for i, line in enumerate(lines) if line.strip().decode() == mutation["source"]]
    before = mutation["before"].encode()
    for index in sorted(same, key=lambda index: abs(index + 1 - mutation["line"])):
        indent = len(lines[index]) - len(lines[index].lstrip())
        start = sum(len(line) + 1 for line in lines[:index]) + indent + mutation["column"]
        end = start + len(before)
        if text[start:end] == before:
            return text[:start] + mutation["after"].encode() + text[end:]
    return None


def copy_of(tree, folder):
    """Copies the files of a tree, which then chooses tests as this one, and shares its cache."""
    files = f"git -C {tree} ls-files -z -c -o --exclude-standard"
    pack = f"tar -C {tree} --null -T - --ignore-failed-read -c"
    subprocess.run(f"{files} | {pack} | tar -x", shell=True, cwd=folder, check=True)
    for name in ("changed.py", "imports.py"):
        shutil.copy2(ROOT / "tests" / name, folder / "tests" / name)
    (folder / ".cache").symlink_to(tree / ".cache")


def write(path, text):
    """Writes a file with a time of its own: Python compares times to use a compiled file."""
    path.write_bytes(text)
    stamp = next(_stamps)
    os.utime(path, (stamp, stamp))


def run(command, folder, limit):
    """Status and output of a command; status None: it used `limit` seconds of CPU time, or waited
    for ten times as long."""
    limit = max(1, int(limit))
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},  # before the tree that is installed
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5)),
    )
    try:
        output = process.communicate(timeout=10 * limit)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, ""
    late = process.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
    return None if late else process.returncode, output.decode(errors="replace")


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def outcome(mutation, folder, limit):
    """What the tests in a copy say to a mutation."""
    path = folder / mutation["file"]
    intact = path.read_bytes() if path.exists() else b""
    changed = mutated(intact, mutation)
    if changed is None:
        return {"outcome": "no such place"}
    began = cpu_seconds()
    tests = run(["tests.changed", "--list", mutation["file"]], folder, limit)[1].split()
    ignored = []  # tests that fail without the mutation too, in this copy
    num_run = 0
    status = 0
    for part in rounds(tests):
        num_run += len(part)
        while True:
            flags = [f"--deselect={name}" for name in ignored]
            write(path, changed)
            status, output = run(
                ["pytest", "-x", "-q", *flags, *part], folder, limit - (cpu_seconds() - began)
            )
            write(path, intact)
            failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.MULTILINE)
            if status in (None, 0, 5) or not failed:
                break
            if run(["pytest", "-q", failed[1]], folder, limit)[0] == 0:
                break
            ignored.append(failed[1])
        if status not in (0, 5):
            break
    words = {None: "limit reached", 0: "not found", 5: "not found"}.get(status, "found")
    by = {"by": failed[1] if failed else f"status {status}"} if words == "found" else {}
    seconds = round(cpu_seconds() - began)
    return {"outcome": words, **by, "files": num_run, "cpu_seconds": seconds, "ignored": ignored}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--number", type=int, default=30, help="how many to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print what is drawn and run nothing")
    parser.add_argument("--from", dest="source", type=Path, help="file of --list, not a draw")
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose package and tests")
    parser.add_argument("--limit", type=int, default=900, help="CPU seconds for each")
    args = parser.parse_args()
    lines = args.source.read_text().splitlines() if args.source else []
    mutations = [json.loads(line) for line in lines] or draw(args.number, args.seed)
    if args.list:
        print(*map(json.dumps, mutations), sep="\n")
        return
    with tempfile.TemporaryDirectory() as name:
        copy_of(args.tree.resolve(), Path(name))
        for mutation in mutations:
            print(json.dumps(mutation | outcome(mutation, Path(name), args.limit)), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of files that changed, and of what uses them, nearest first.

    make test_changed                 compared with where the branch left main
    make test_changed SINCE=HEAD~3
    python -m tests.changed --list transformer_jax/nn/attention.py

A module uses what it imports, also inside functions; a test file also what the fixtures that it
names use (conftest.py), and the programs and files that its texts name. The nearest tests are those
of the changed file itself (tests/runs/test_config.py of runs/config.py), then those that reach it
by the fewest imports. Tests of other files than modules go by their place (`BY_PLACE`); a changed
conftest.py has all tests of its folder.
"""

import argparse
import itertools
import subprocess
import sys
from pathlib import Path

from tests.imports import PATHS, ROOT, TESTS, distances_to_users, module_name

BY_PLACE = {
    "transformer_jax/": ("tests/test_architecture.py",),
    "tests/": (),
    "configs/": ("tests/configs", "tests/docs"),
    "experiments/": ("tests/docs", "tests/experiments"),
    "docs/": ("tests/docs",),
    "pyproject.toml": ("tests",),
    "requirements.txt": ("tests",),
    "": ("tests/docs",),  # README.md, CHANGELOG.md, Makefile
}
"""Tests that read files of a place, by the beginning of their paths."""


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], check=True, stdout=-1, text=True).stdout


def changed_files(since):
    """Files that differ from a revision, committed or not, and new ones."""
    new = git("ls-files", "-z", "--others", "--exclude-standard")
    names = git("diff", "--name-only", "-z", "--relative", since) + new
    return [ROOT / name for name in names.split("\0") if name]


def branch_point():
    """The last commit that is also one of origin/main, or of main."""
    known = git("branch", "--all", "--list", "main", "origin/main", "--format=%(refname)").split()
    if not known:
        sys.exit("there is no branch main to compare with; give a revision, SINCE=REVISION")
    return git("merge-base", "HEAD", max(known)).strip()  # refs/remotes before refs/heads


def tests_of(path):
    """Test files of a changed file: {path: number of imports between them}; 0: its own."""
    place = path.relative_to(ROOT).as_posix()
    module = module_name(path)
    folders = list(next(names for start, names in BY_PLACE.items() if place.startswith(start)))
    mirror = ROOT / "tests" / place.partition("/")[2]  # of the package; of a test, itself
    is_data = module not in PATHS or path.name == "conftest.py"
    if is_data and place.startswith(("transformer_jax/", "tests/")):
        folders.append(next(folder for folder in mirror.parents if tests_below(folder)))
    tests = dict.fromkeys(itertools.chain(*(tests_below(ROOT / name) for name in folders)), 1)
    stem = path.parent.name if path.name == "__init__.py" else path.stem
    nearest = (path, mirror.with_name(f"test_{stem}.py"))
    for user, distance in ({} if is_data else distances_to_users(module)).items():
        if user in TESTS:
            tests[TESTS[user]] = 0 if TESTS[user] in nearest else distance
    return tests


def tests_below(folder):
    return [path for path in TESTS.values() if folder in (path, *path.parents)]


def nearest_first(paths):
    """Test files of changed files, nearest first; campaigns only if they changed themselves."""
    distances = {}
    for path in paths:
        for test, distance in tests_of(path).items():
            if distance == 0 or ROOT / "tests" / "campaigns" not in test.parents:
                distances[test] = min(distance, distances.get(test, distance))
    return sorted(distances, key=lambda test: (distances[test], test))


def rounds(tests, first=4):
    """Parts of a list, each as long as all before it: pytest collects the nearest tests alone."""
    start = 0
    while start < len(tests):
        end = start + max(start, first)
        yield tests[start:end]
        start = end


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="*", help="changed files, in place of those that git names")
    parser.add_argument("--since", help="revision to compare with; unset: where main was left")
    parser.add_argument("--list", action="store_true", help="print the test files, run nothing")
    parser.add_argument("--flags", default="", help="flags of pytest, in one argument")
    args = parser.parse_args()
    changed = [Path(name).resolve() for name in args.files]
    tests = nearest_first(changed or changed_files(args.since or branch_point()))
    names = [path.relative_to(ROOT).as_posix() for path in tests]
    if args.list:
        print(*names, sep="\n")
        return
    for part in rounds(names):
        command = [sys.executable, "-m", "pytest", *args.flags.split(), *part]
        status = subprocess.run(command, cwd=ROOT).returncode
        if status not in (0, 5):  # 5: no test was collected
            sys.exit(status)


if __name__ == "__main__":
    main()

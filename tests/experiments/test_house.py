"""What the counts of a made-up repository are."""

import importlib
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

STEP = '''"""A docstring of the module,
which is two lines long."""

import os
from pathlib import (
    Path,
)


def step(state, batch, *rows, rate=None, **more):
    """One line."""
    # A comment.
    total = """a string
    of two lines"""
    return total


class Adder:
    def add(self, left, /, right):
        return left + right

    @classmethod
    def of(cls, values):
        return cls()
'''


@pytest.fixture
def script(monkeypatch):
    """`script(name)`: a script of experiments/, imported as Python does when it runs it."""
    monkeypatch.syspath_prepend(EXPERIMENTS)
    yield importlib.import_module
    for name in ("house", "routes"):
        sys.modules.pop(name, None)


@pytest.fixture
def house(script):
    return script("house")


@pytest.fixture
def root(tmp_path):
    """`root({path: text})`: a repository of these files."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def numbered(first, last):
    return "".join(f"x{number} = {number}\n" for number in range(first, last + 1))


def test_rooms_are_files_and_folders(house, root):
    files = {"a.py": "", "nn/b.py": "", "nn/c.py": "", "__pycache__/a.pyc": ""}
    package = root({f"transformer_jax/{name}": text for name, text in files.items()})
    assert house.count_rooms(package / "transformer_jax") == 2


def test_the_longest_parameter_list_leaves_out_self(house, root):
    package = root({"transformer_jax/training/step.py": STEP}) / "transformer_jax"
    assert house.longest_parameters(package) == {"function": "training/step.py:step", "count": 5}
    (package / "training" / "step.py").write_text(STEP[STEP.index("class Adder") :])
    assert house.longest_parameters(package) == {"function": "training/step.py:add", "count": 2}


def test_lines_of_code_leave_out_prose(house, root):
    package = root({"transformer_jax/training/step.py": STEP}) / "transformer_jax"
    assert house.code_lines(package / "training" / "step.py") == 4 + 4 + 6


def test_the_model_is_two_rooms_and_four_modules(house, root):
    read = ["losses.py", "models/gpt.py", "nn/positions/rotary.py", "training/step.py"]
    others = ["errors.py", "training/state.py", "data/models.py"]
    package = root({f"transformer_jax/{name}": "" for name in read + others}) / "transformer_jax"
    found = [str(path.relative_to(package)) for path in house.model_files(package)]
    assert found == read


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ("import os\n\n" + numbered(1, 9), []),
        ("import os\n\n" + numbered(1, 10), [("tests/b.py:3", "configs/a.py:1", 10)]),
        (
            "if True:\n" + numbered(2, 15).replace("x", "  x"),
            [("tests/b.py:2", "configs/a.py:2", 14)],
        ),
        (
            numbered(1, 10) + "y = 0\n" + numbered(3, 12),
            [
                ("tests/b.py:1", "configs/a.py:1", 10),
                ("tests/b.py:12", "configs/a.py:3", 10),
            ],
        ),
    ],
    ids=["nine lines", "ten lines", "indented", "two runs"],
)
def test_copies(house, root, tests, expected):
    folder = root({"configs/a.py": numbered(1, 20), "tests/b.py": tests})
    found = [(copy["at"], copy["as"], copy["lines"]) for copy in house.find_copies(folder)]
    assert found == expected


def test_equal_lines_in_a_row_are_no_copy_of_themselves(house, root):
    folder = root({"configs/a.py": "x = 1\n" * 12})
    assert house.find_copies(folder) == []


def test_a_route_ends_where_jax_is_entered(script, tmp_path):
    route = script("routes").route
    names = ["cli/main.py", "nn/search.py"]
    own = [compile("", str(tmp_path / "transformer_jax" / name), "exec") for name in names]
    jax = compile("", "/lib/jax/_src/pjit.py", "exec")
    stack = [own[0], jax, own[1]]
    assert route(stack, tmp_path / "transformer_jax", "pjit.py") == ["cli/main.py:<module>"]
    assert len(route(stack, tmp_path / "transformer_jax", None)) == 2


def test_no_ten_lines_of_this_repository_stand_twice(house):
    """In the package, configs, tests and experiments; what two share, one imports."""
    assert house.find_copies(EXPERIMENTS.parent) == []

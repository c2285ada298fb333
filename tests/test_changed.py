# SPDX-License-Identifier: Apache-2.0
"""Which tests a changed file has, and how lines of code are counted."""

import pytest

from tests.changed import ROOT, nearest_first, rounds
from tests.weight import num_code_lines

pytestmark = pytest.mark.xdist_group("imports")  # one worker parses all files


def listed(*names):
    tests = nearest_first([ROOT / name for name in names])
    return [path.relative_to(ROOT / "tests").as_posix() for path in tests]


@pytest.mark.parametrize(
    ("changed", "nearest", "others"),
    [
        ("transformer_jax/runs/config.py", "runs/test_config.py", ["cli/test_end_to_end.py"]),
        # By a registry's text, as no module imports a task.
        ("transformer_jax/tasks/parsing.py", "tasks/test_parsing.py", ["cli/test_lines.py"]),
        # By the fixture `trained` of the folder above.
        ("transformer_jax/runs/train.py", "runs/test_train.py", ["runs/test_run.py"]),
        # By `python -m transformer_jax` in another process.
        ("transformer_jax/cli/main.py", "cli/test_main.py", ["parallel/test_hosts.py"]),
        (
            "tests/lab/analysis/drawn.py",
            "docs/test_recipes.py",
            ["lab/analysis/test_activations.py"],
        ),
    ],
)
def test_own_tests_come_first_and_users_follow(changed, nearest, others):
    tests = listed(changed)
    assert tests[0] == nearest
    assert set(others) <= set(tests)
    assert not any(test.startswith("campaigns") for test in tests)


def test_a_file_that_nothing_reaches_runs_few_tests():
    assert "nn/test_attention.py" not in listed("transformer_jax/lab/plan/hlo.py")
    assert listed("tests/decoding/test_sampling.py") == ["decoding/test_sampling.py"]


def test_files_without_imports_have_the_tests_of_their_place():
    assert {test.partition("/")[0] for test in listed("docs/faq.md", "README.md")} == {"docs"}
    assert set(listed("tests/nn/fixtures/new.npz")) == set(listed("tests/nn/conftest.py"))
    assert "interop/test_families.py" in listed("tests/interop/fixtures/gpt2/config.json")
    assert "data/sets/test_embedded.py" in listed(
        "transformer_jax/data/sets/embedded_text/test.de.gz"
    )


def test_the_nearest_tests_run_first_and_alone():
    assert [*rounds([*range(11)], first=2)] == [[0, 1], [2, 3], [4, 5, 6, 7], [8, 9, 10]]


def test_code_lines_are_without_blanks_comments_and_docstrings(tmp_path):
    path = tmp_path / "code.py"
    path.write_text('"""Doc\n\nstring."""\n\nX = 1  # why\n"""Of X."""\n# a\nY = (\n    2,\n)\n')
    assert num_code_lines(path) == 4

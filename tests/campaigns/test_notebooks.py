# SPDX-License-Identifier: Apache-2.0
"""Every notebook but the one of tests/experiments runs as it is committed."""

import pytest

from experiments.rerun_notebooks import NOTEBOOKS, kernel
from tests.experiments.test_notebooks import IN_MAKE_TEST, assert_runs_as_committed


@pytest.fixture(scope="module")
def run_notebook():
    """`run_notebook(notebook)`: runs it in a namespace of its own."""
    with kernel() as run:
        yield run


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path != IN_MAKE_TEST], ids=lambda path: path.stem
)
def test_a_notebook_runs_from_the_top(path, run_notebook):
    assert_runs_as_committed(path, run_notebook)

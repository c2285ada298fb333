# SPDX-License-Identifier: Apache-2.0
"""Every notebook runs as it is committed."""

import pytest

from experiments.rerun_notebooks import NOTEBOOKS, joined, kernel, read, tidy
from tests.experiments.test_notebooks import MOST_LINES, code_cells, is_picture, most_lines


@pytest.fixture(scope="module")
def run_notebook():
    """`run_notebook(notebook)`: runs it in a namespace of its own."""
    with kernel() as run:
        yield run


def shapes(notebook):
    """Each output of each cell: the name of a stream, or whether it is a picture.

    Progress, which is HTML, is left out: what takes no time shows none.
    """
    return [
        [
            output.get("name", is_picture(output.get("data", {})))
            for output in joined(one for one in cell.outputs if one.get("name") != "stderr")
            if "text/html" not in output.get("data", {})
        ]
        for cell in code_cells(notebook)
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_the_top(path, run_notebook):
    """A notebook asserts its claims itself."""
    notebook = read(path)
    run_notebook(notebook)
    tidy(notebook)
    assert shapes(notebook) == shapes(read(path))
    assert most_lines(notebook) <= MOST_LINES.get(path.stem, 12)

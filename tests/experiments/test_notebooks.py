# SPDX-License-Identifier: Apache-2.0
"""The notebooks run as they are committed, and are committed as they run."""

import os
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[2]
ERROR = None  # has neither a name nor data
NOTEBOOKS = sorted((ROOT / "experiments" / "notebooks").glob("*.ipynb"))


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook):
    """Outputs of each code cell: streams by name, and the types of what it shows."""
    return [
        {kind for output in cell.outputs for kind in output.get("data", [output.get("name")])}
        for cell in code_cells(notebook)
    ]


def test_there_are_notebooks():
    names = {"quick_start", "ablation", "train_a_gpt", "paper_to_code", "claims"}
    assert {path.stem for path in NOTEBOOKS} >= names


@pytest.fixture(scope="module")
def run_notebook(tmp_path_factory):
    """`run_notebook(notebook)`: runs it in a namespace of its own.

    All share a kernel of this interpreter, which ignores the user's IPython settings: imports and
    compiled programs take most of the time.
    """
    where = {"metadata": {"path": ROOT}}
    client = NotebookClient(new_notebook(), timeout=600, kernel_name="python3", resources=where)

    def run(notebook):
        for one in (new_notebook(cells=[new_code_cell("%reset -f")]), notebook):
            client.nb = one
            client.reset_execution_trackers()
            for number, cell in enumerate(one.cells):
                client.execute_cell(cell, number)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name)))
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        with client.setup_kernel():
            yield run


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_the_top(path, run_notebook):
    """A notebook asserts its claims itself."""
    notebook = read(path)
    run_notebook(notebook)
    shown = [{"image/png"} & kind for kind in kinds(notebook)]
    assert shown == [{"image/png"} & kind for kind in kinds(read(path))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs(path):
    """Outputs of one run from top to bottom, without stderr and names of local folders;
    small, as every change of it stays in the history."""
    notebook = read(path)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    found = set().union(*kinds(notebook))
    assert "image/png" in found and not found & {"stderr", ERROR}
    outputs = str([cell.outputs for cell in code_cells(notebook)])
    folders = map(str, (ROOT, Path.home(), tempfile.gettempdir()))
    assert not [folder for folder in folders if folder in outputs]
    assert path.stat().st_size < 150_000

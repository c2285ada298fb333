# SPDX-License-Identifier: Apache-2.0
"""Runs the notebooks of the repository, and saves them with their outputs: `make notebooks`."""

import argparse
import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "experiments" / "notebooks").glob("*.ipynb"))
_TEMPORARY = re.compile(rf"{re.escape(tempfile.gettempdir())}/tmp\w+")
_UNSEEN = re.compile(
    r"(?<=>)\s+(?=<)|<!--.*?-->|<metadata>.*?</metadata>"
    r'|(?<=<g) id="[^"]*"| transform="rotate\(-0 [^"]*"',
    re.DOTALL,
)
"""What does not show in a picture: spaces, comments, the date, names of groups, turns by 0."""


def read(path: Path) -> NotebookNode:
    """The notebook in a file."""
    return nbformat.read(path, as_version=4)


@contextlib.contextmanager
def kernel() -> Iterator[Callable[[NotebookNode], None]]:
    """A function that runs a notebook from top to bottom, in a namespace of its own.

    All notebooks share a kernel of this interpreter, which ignores the user's IPython settings:
    imports and compiled programs take most of the time.
    """
    client = NotebookClient(
        new_notebook(), timeout=600, kernel_name="python3", resources={"metadata": {"path": ROOT}}
    )

    def run(notebook: NotebookNode) -> None:
        for one in (new_notebook(cells=[new_code_cell("%reset -f")]), notebook):
            client.nb = one
            client.reset_execution_trackers()
            for number, cell in enumerate(one.cells):
                client.execute_cell(cell, number)

    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        own = {"IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder, "PYTHONPATH": path}
        with mock.patch.dict(os.environ, own), client.setup_kernel():
            yield run


def tidy(notebook: NotebookNode) -> None:
    """Counts the cells from 1, joins the pieces of a stream, and drops what differs between runs:
    stderr, times of execution, names of temporary folders, and what does not show in pictures."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(cells, 1):
        cell.execution_count = count
        cell.metadata.pop("execution", None)
        cell.outputs = joined(each for each in cell.outputs if each.get("name") != "stderr")
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            texts = output if "text" in output else output.get("data", {})
            if "image/svg+xml" in texts:  # sharp at any size, and smaller
                texts.pop("image/png", None)
                seen = _UNSEEN.sub("", texts["image/svg+xml"])
                texts["image/svg+xml"] = seen.replace("\n", " ")  # else each line is one of JSON
            for kind in {"text", "text/plain", "text/html"} & texts.keys():
                texts[kind] = _TEMPORARY.sub("runs", texts[kind])


def joined(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """The outputs of a cell, with neighboring pieces of a stream as one."""
    found: list[NotebookNode] = []
    for output in outputs:
        if found and output.output_type == "stream" and output.name == found[-1].get("name"):
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main() -> None:
    """Runs the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="such as quick_start; default: all")
    names = parser.parse_args().names
    with kernel() as run:
        for path in NOTEBOOKS:
            if not names or path.stem in names:
                notebook = read(path)
                run(notebook)
                tidy(notebook)
                nbformat.write(notebook, path)
                print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()

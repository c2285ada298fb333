# SPDX-License-Identifier: Apache-2.0
"""The notebooks are committed as they run, and name what exists. (They run in
`tests/campaigns/test_notebooks.py`.)"""

import ast
import re
import tempfile
from pathlib import Path

import pytest

from experiments.rerun_notebooks import NOTEBOOKS, ROOT, joined, read
from transformer_jax.runs.settings import FIELDS

ERROR = None  # has neither a name nor data
MOST_LINES = {"quick_start": 14}
"""Most lines that a cell prints, where it is not 12."""
MISTAKES = {"quick_start": ["model.num_head"]}
"""Fields that a notebook mistypes to show the message."""
FIELD = re.compile(rf"({'|'.join({name.partition('.')[0] for name in FIELDS})})\.\w+")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_picture(kinds):
    return any(f"{kind}".startswith("image/") for kind in kinds)


def most_lines(notebook):
    """Lines that the longest output of a cell prints."""
    outputs = (output for cell in code_cells(notebook) for output in joined(cell.outputs))
    return max(len(output.get("text", "").splitlines()) for output in outputs)


def test_there_are_notebooks():
    names = {"quick_start", "ablation", "train_a_gpt", "paper_to_code", "claims", "jax_research"}
    assert {path.stem for path in NOTEBOOKS} >= names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_names_what_exists(path):
    """What it imports, and the fields that it sets."""
    lines = [line for cell in code_cells(read(path)) for line in cell.source.splitlines()]
    tree = ast.parse("\n".join(line for line in lines if not line.startswith("%")))
    names, missing = {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(compile(ast.Module([node], []), path.name, "exec"), names)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(name), attribute) if name in names:
                missing += [] if hasattr(names[name], attribute) else [f"{name}.{attribute}"]
            case ast.Dict(keys):
                texts = [key.value for key in keys if isinstance(key, ast.Constant)]
                missing += [text for text in texts if FIELD.fullmatch(text) and text not in FIELDS]
    assert missing == MISTAKES.get(path.stem, [])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_its_outputs(path):
    """Outputs of one run from top to bottom, without stderr and names of local folders;
    small, as every change of it stays in the history."""
    notebook = read(path)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    kinds = {kind for output in outputs for kind in output.get("data", [output.get("name")])}
    assert is_picture(kinds) and not kinds & {"stderr", ERROR}
    folders = map(str, (ROOT, Path.home(), tempfile.gettempdir()))
    unwanted = ("dc:date", *folders)  # the date is one of a picture
    assert [text for text in unwanted if text in str(outputs)] == []
    assert most_lines(notebook) <= MOST_LINES.get(path.stem, 12)
    assert path.stat().st_size < 150_000

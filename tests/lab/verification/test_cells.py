# SPDX-License-Identifier: Apache-2.0
"""Components of a notebook's cells are written to a module."""

import sys
import types

import pytest

from transformer_jax.errors import UserError
from transformer_jax.lab.verification.cells import write_cells
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.parameters import PARAMETERS
from transformer_jax.runs.user_modules import load_modules

CELLS = [
    "%matplotlib inline",
    "import jax.numpy as jnp\nimport transformer_jax as tj",
    "from transformer_jax.nn.feed_forward import ACTIVATIONS\nSCALE = 3\nHEAVY = print('trains')",
    "def scaled(x):\n    return later(SCALE * x)",
    "SCALE = 2\nrun = tj.train('no config', 'nowhere')",
    "from transformer_jax.nn.parameters import PARAMETERS, Parameter\n"
    "PARAMETERS.append(Parameter('my_scale', 'scale', ('model',)))",
    "def later(x):\n    return jnp.sin(x)",
    "@ACTIVATIONS.register('of_a_cell')\ndef twice(x):\n    return scaled(x)",
    "ACTIVATIONS.register('other', abs); raise ValueError('a cell that failed')",
]


@pytest.fixture
def registered():
    """Restores the registries."""
    before, table = dict(ACTIVATIONS), list(PARAMETERS)
    yield
    ACTIVATIONS.restore(before)
    PARAMETERS[:] = table


def test_definitions_are_found_and_nothing_else_runs(monkeypatch, tmp_path, registered):
    monkeypatch.setattr(sys.modules["__main__"], "In", CELLS, raising=False)
    path = write_cells(["of_a_cell"], tmp_path)
    assert "train" not in path.read_text() and "other" not in path.read_text()
    load_modules(path)
    assert ACTIVATIONS["of_a_cell"](0.25) == pytest.approx(0.479426)  # sin(2 * 0.25)
    assert PARAMETERS[-1].end == "my_scale"


def test_a_component_without_source_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    with pytest.raises(UserError, match="'of_a_cell' is not found .* modules=FILE"):
        write_cells(["of_a_cell"], tmp_path)

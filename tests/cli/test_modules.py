# SPDX-License-Identifier: Apache-2.0
"""`--modules` of the command line: registered names can be used, and errors are one line."""

import sys

import pytest

from tests.conftest import QUICKSTART, forgetting_modules
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.runs import user_modules

SHELL_POSITION = """
from transformer_jax.nn.positions import POSITIONS, PositionEncoding

POSITIONS.register("of_the_shell", type("OfTheShell", (PositionEncoding,), {}))
"""


@pytest.fixture
def own(tmp_path):
    """A user's file, whose registrations are undone after the test."""
    path = tmp_path / "own.py"
    path.write_text(SHELL_POSITION)
    with forgetting_modules():
        yield path


def test_a_config_names_what_a_file_registers(shell, own, tmp_path):
    words = ["plot", f"--config={QUICKSTART}", "--config.model.positions=of_the_shell"]
    output = tmp_path / "recipe.png"
    answer = shell(*words, f"--output={output}", f"--modules={own}")
    assert (answer.status, answer.out) == (0, f"{output}\n")
    assert POSITIONS["of_the_shell"].__name__ == "OfTheShell"


FAILING = """
def outer(inner):
    inner()

def fail():
    outer(lambda: {}["size"])
"""


def test_an_error_in_a_module_is_one_line_unless_its_traceback_is_asked_for(
    shell, own, monkeypatch
):
    own.write_text(FAILING)
    user_modules.load_modules(own)
    (name,) = (name for name in user_modules._loaded if name.startswith("own_"))
    module = sys.modules[name]
    monkeypatch.setattr("transformer_jax.runs.load.load", lambda *_, **__: module.fail())
    answer = shell("evaluate", "--workdir=w")
    assert answer.status == 2
    hint = "(--traceback shows how it got there)"
    assert answer.err == f"error: {own}, line 6: KeyError: 'size' {hint}\n"
    answer = shell("evaluate", "--workdir=w", "--traceback")
    assert answer.status == 2
    assert answer.err.startswith("Traceback (most recent call last):\n")
    assert f'File "{own}", line 3, in outer' in answer.err and answer.err.endswith(f"{hint}\n")

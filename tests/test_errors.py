# SPDX-License-Identifier: Apache-2.0
"""Messages of errors are safe to print, whatever they quote."""

import pickle

import pytest
from IPython.core.interactiveshell import InteractiveShell

from transformer_jax.errors import DivergedError, UserError, escape_controls, user_errors


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b", r"\x1b[31mred\x1b"),
        ("\x1b]0;title without an end", r"\x1b]0;title without an end"),
        ("\x9b31m\x07\x08\x7f\r", r"\x9b31m\x07\x08\x7f\r"),
        ("txt.\u202eexe \u2066a\u2069", r"txt.\u202eexe \u2066a\u2069"),
        ("a\u2028b\x85c\udcff", r"a\u2028b\x85c\udcff"),
        ("a\tb\nc \\ \u200d \u3000 漢字 עברית \N{GRINNING FACE}",) * 2,
    ],
)
def test_only_characters_that_act_on_a_terminal_are_escaped(text, shown):
    assert escape_controls(text) == shown == escape_controls(shown)
    one_line = shown.replace("\n", r"\n")
    assert str(UserError(text)) == str(pickle.loads(pickle.dumps(DivergedError(text)))) == one_line


def test_errors_of_the_kinds_that_are_named_say_where_they_are():
    with (
        pytest.raises(UserError, match="^row 1: is odd; fix it$"),
        user_errors("row 1", "; fix it"),
    ):
        raise ValueError("is odd")
    kinds = (OSError, UserError)
    with pytest.raises(UserError, match="^here: is odd$"), user_errors("here", kinds=kinds):
        raise UserError("is odd")
    with pytest.raises(ValueError, match="^is odd$"), user_errors("here", kinds=kinds):
        raise ValueError("is odd")


def test_a_notebook_shows_one_line(capsys):
    shell = InteractiveShell()
    shell.run_cell("import transformer_jax as tj\ntj.config('quikstart')")
    assert capsys.readouterr().out.splitlines() == [
        "UserError: there is no config file quikstart; did you mean quickstart?"
    ]

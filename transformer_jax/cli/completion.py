# SPDX-License-Identifier: Apache-2.0
"""Completion of command lines in bash, zsh and fish, by argcomplete.

The script that `transformer_jax completion SHELL` prints makes the shell call the program at each
TAB, with the line so far in its environment. The candidates are those of the parser.
"""

import argparse
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.cli.flags import OVERRIDE


def is_asked() -> bool:
    """Returns True if a shell started this process to complete a line."""
    return "_ARGCOMPLETE" in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Writes the candidates for the line in the environment, and exits.

    Fields of the config are added only if the line has an override: see `_fields`.
    """
    import argcomplete

    _add_completers(parser, with_fields=OVERRIDE in os.environ["COMP_LINE"])
    argcomplete.autocomplete(parser, always_complete_options="long")


def _add_completers(parser: argparse.ArgumentParser, with_fields: bool) -> None:
    from argcomplete.completers import DirectoriesCompleter

    completers: dict[str, Any] = {
        "config": _config_names,
        "workdir": DirectoriesCompleter(),
        "checkpoint": lambda **_: ("latest", "best"),
    }
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _add_completers(verb, with_fields)
        elif action.dest in completers:
            action.completer = completers[action.dest]  # type: ignore[attr-defined]
    if with_fields and any(action.dest == "config" for action in parser._actions):
        for name, choices, meaning in _fields():
            parser.add_argument(f"{OVERRIDE}{name}", choices=choices or None, help=meaning)


@functools.cache
def _fields() -> list[tuple[str, Sequence[str], str]]:
    """(name, choices, meaning) of each field of the config.

    Importing them takes seconds, so they are kept in the user's cache until the code changes.
    """
    from transformer_jax.runtime.remake import kept_json

    def find() -> list[tuple[str, Sequence[str], str]]:
        from transformer_jax.runs.field_docs import find_fields

        return [(field.field, field.choices, field.meaning) for field in find_fields()]

    package = Path(__file__).parents[1]
    newest = max(path.stat().st_mtime_ns for path in package.rglob("*.py"))
    fields: list[tuple[str, Sequence[str], str]]
    fields = kept_json("completion/fields.json", f"{package} {newest}", find)
    return fields


def _config_names(prefix: str, **_: Any) -> Sequence[str]:
    from argcomplete.completers import FilesCompleter

    from transformer_jax.runs.shipped import shipped_files

    return [*shipped_files("config"), *FilesCompleter(["py", "json"])(prefix)]

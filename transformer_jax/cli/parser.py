# SPDX-License-Identifier: Apache-2.0
"""Parses or completes a command line: a verb, its flags and overrides of config fields.

Imports nothing heavy, so that `--help` answers at once.
"""

import argparse
import functools
import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from transformer_jax.cli import lab_verbs, terminal, verbs  # noqa: F401 (they register verbs)
from transformer_jax.cli.flags import ANY_FIELD, GROUPS, OVERRIDE, PROGRAM, VERBS, Verb
from transformer_jax.errors import UserError
from transformer_jax.suggestions import VERB_SYNONYMS, fields_named, flag_synonyms, suggest


class _Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one line; flags cannot be abbreviated."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def print_help(self, file: Any = None) -> None:
        terminal.write(self.format_help())

    def error(self, message: str) -> NoReturn:
        verb = self.prog.removeprefix(PROGRAM).strip()
        raise UserError(f"{verb}: {message}" if verb else message)


class _PrintVersion(argparse.Action):
    def __call__(self, *_: Any) -> NoReturn:
        from importlib.metadata import version

        python = ".".join(map(str, sys.version_info[:3]))
        package = version("transformer_jax")
        terminal.write(f"transformer_jax {package} (jax {version('jax')}, Python {python})\n")
        sys.exit(0)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses a verb and its flags; `overrides` maps SECTION.FIELD to the text of its value.

    Raises:
      UserError: a verb or flag is unknown (the message names the nearest), missing or malformed.
    """
    words, overrides = take_overrides(argv)
    _check_verb(words)
    args, unknown = build_parser().parse_known_args(words)
    if args.verb not in VERBS:
        command = f"{PROGRAM} {args.verb}".strip()
        verbs_after = ", ".join(_next_words(args.verb))
        raise UserError(f"`{command}` needs a verb: {verbs_after}; see `{command} --help`")
    verb = VERBS[args.verb]
    if unknown:
        raise _unknown_flag(verb, unknown[0])
    _check_overrides(verb, overrides)
    _check_flags(verb, args)
    args.overrides = overrides
    return args


def take_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separates overrides (`--config.a.b=value` or `--config.a.b value`) from the other words.

    Returns:
      The other words, and the overrides as {"a.b": "value"}.

    Raises:
      UserError: a field has no value.
    """
    words = []
    overrides = {}
    rest = iter(argv)
    for word in rest:
        if not word.startswith(OVERRIDE):
            words.append(word)
            continue
        flag, has_value, value = word.partition("=")
        if not has_value:
            value = next(rest, "--")  # at the end as before a flag: no value
            if value.startswith("--"):
                raise UserError(f"{flag} has no value; write {flag}=VALUE")
        overrides[flag.removeprefix(OVERRIDE)] = value
    return words, overrides


def build_parser() -> argparse.ArgumentParser:
    """Parser of all verbs and their flags; `parse` handles the overrides of config fields."""
    parser = _Parser(
        prog=PROGRAM, description="Trains, scores and uses Transformers; one config, one run."
    )
    parser.set_defaults(verb="")
    parser.add_argument(
        "--version",
        action=_PrintVersion,
        nargs=0,
        help="print the versions of this, jax and Python",
    )
    places = {"": parser.add_subparsers(metavar="VERB", title="verbs")}
    for name, verb in VERBS.items():
        group, _, word = name.rpartition(" ")
        if group not in places:
            summary = GROUPS[group]
            group_parser = places[""].add_parser(group, help=summary, description=summary)
            group_parser.set_defaults(verb=group)
            places[group] = group_parser.add_subparsers(metavar="VERB", title="verbs")
        summary, _, details = inspect.cleandoc(verb.run.__doc__ or "").partition("\n\n")
        if verb.overrides == ANY_FIELD:
            details += f" Any field of the config can be set: {OVERRIDE}SECTION.FIELD=VALUE."
        verb_parser = places[group].add_parser(
            word, help=summary, description=summary, epilog=details.strip()
        )
        verb_parser.set_defaults(verb=name)
        for flag in verb.flags.values():
            flag.add_to(verb_parser)
    return parser


def _next_words(start: str) -> list[str]:
    """The words of verbs that may follow the words at their start."""
    prefix = f"{start} ".lstrip()
    rest = (name.removeprefix(prefix) for name in VERBS if name.startswith(prefix))
    return list(dict.fromkeys(words.split()[0] for words in rest))


def _check_verb(words: Sequence[str]) -> None:
    start = ""
    for word in words:
        next_words = _next_words(start)
        if not next_words or word.startswith("-"):
            return
        if word not in next_words:
            synonyms = None if start else VERB_SYNONYMS
            hint = suggest(word, next_words, synonyms) or f"; known: {', '.join(next_words)}"
            raise UserError(f"unknown verb {word}{hint}")
        start = f"{start} {word}".lstrip()


def _unknown_flag(verb: Verb, word: str) -> UserError:
    word = word.partition("=")[0]
    if not word.startswith("-"):
        return UserError(f"unexpected argument {word}; flags are written --FLAG=VALUE")
    flags = [f"--{name}" for name, flag in verb.flags.items() if flag.spelling.startswith("--")]
    hint = suggest(word, flags, flag_synonyms(flags))
    if verb.overrides == ANY_FIELD:
        from transformer_jax.runs.settings import FIELDS  # takes seconds, only for an error

        fields = [f"{OVERRIDE}{field}=VALUE" for field in fields_named(word, FIELDS)]
        hint = f"; did you mean {' or '.join(fields)}?" if fields else hint
    return UserError(f"unknown flag {word}{hint or f'; known: {", ".join(flags)}'}")


def _check_overrides(verb: Verb, overrides: Mapping[str, str]) -> None:
    for name in overrides:
        if not verb.overrides or not re.match(verb.overrides, name):
            reason = ": the run uses the config that it was trained with"
            raise UserError(
                f"{verb.name} takes no {OVERRIDE}{name}{reason if 'workdir' in verb.flags else ''}"
            )


def _check_flags(verb: Verb, args: argparse.Namespace) -> None:
    # Not by `required=True` of argparse, which would report a misspelt flag as a missing one.
    names_given = {name for name, flag in verb.flags.items() if flag.is_given(args)}
    for names in verb.requires:
        alternatives = names.split("|")
        if names_given.isdisjoint(alternatives):
            flags = " or ".join(f"--{name}" for name in alternatives)
            raise UserError(f"{verb.name} needs {flags}; see `{PROGRAM} {verb.name} --help`")
    for name in sorted(names_given):
        flag = verb.flags[name]
        if flag.goes_with and flag.goes_with not in names_given:
            raise UserError(f"--{name} goes with --{flag.goes_with}")
        for other in sorted(names_given.intersection(flag.excludes)):
            raise UserError(f"--{other} does not go with --{name}; leave one of them out")


def complete_if_asked() -> None:
    """Writes the candidates for the line in the environment and exits, if a shell started this
    process for that.

    The script that `transformer_jax completion SHELL` prints makes bash, zsh or fish do so at each
    TAB. Fields of the config are added only if the line has an override: see `_fields`.
    """
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    parser = build_parser()
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
    from transformer_jax.runtime.files import kept_json

    def find() -> list[tuple[str, Sequence[str], str]]:
        from transformer_jax.runs.field_docs import find_fields

        return [(field.field, field.choices, field.meaning) for field in find_fields()]

    package = Path(__file__).parents[1]
    newest = max(path.stat().st_mtime_ns for path in package.rglob("*.py"))
    return kept_json("completion/fields.json", f"{package} {newest}", find)


def _config_names(prefix: str, **_: Any) -> Sequence[str]:
    from argcomplete.completers import FilesCompleter

    from transformer_jax.runs.shipped import shipped_files

    return [*shipped_files("config"), *FilesCompleter(["py", "json"])(prefix)]

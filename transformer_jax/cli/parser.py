"""From words to a verb and its flags. Imports nothing heavy: `--help` answers at once."""

import argparse
import difflib
from collections.abc import Collection, Mapping, Sequence

from transformer_jax.cli.flags import VERBS, build_parser
from transformer_jax.cli.one_line_parser import OVERRIDE, PROGRAM
from transformer_jax.cli.shared_flags import DECODE_OPTIONS
from transformer_jax.errors import UserError


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The verb and its flags; `overrides` maps `SECTION.FIELD` to the text given for it.

    Raises:
      UserError: an unknown verb or flag (the nearest is named), a missing or malformed one.
    """
    words, overrides = take_overrides(argv)
    _check_verbs(words)
    args, unknown = build_parser().parse_known_args(words)
    _check_unknown(args, unknown)
    _check_overrides(args, overrides)
    _check_required(args)
    _check_together(args)
    _check_distributed(args)
    args.overrides = overrides
    return args


def take_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Separates `--config.a.b=value` and `--config.a.b value` from the other words.

    Returns:
      The other words, and {"a.b": "value"}.

    Raises:
      UserError: a field has no value.
    """
    words, overrides = [], {}
    rest = iter(argv)
    for word in rest:
        if word.startswith("--") and word.endswith("=--"):  # which argparse takes for a list
            raise UserError(f"{word.removesuffix('=--')} has no value; -- is none")
        if not word.startswith(OVERRIDE):
            words.append(word)
            continue
        flag, has_value, value = word.partition("=")
        if not has_value:
            value = next(rest, "--")
            if value.startswith("--"):
                raise UserError(f"{flag} has no value; write {flag}=VALUE")
        overrides[flag.removeprefix(OVERRIDE)] = value
    return words, overrides


def _check_verbs(words: Sequence[str]) -> None:
    known = VERBS
    for word in words:
        if not known or word.startswith("-"):
            return
        if word not in known:
            raise UserError(_unknown("verb", word, known))
        known = known[word]


def _check_unknown(args: argparse.Namespace, unknown: Sequence[str]) -> None:
    if not unknown:
        return
    word = unknown[0].partition("=")[0]
    if not word.startswith("-"):
        raise UserError(f"unexpected argument {word}; flags are written --FLAG=VALUE")
    flags = ["--" + name for name in vars(args) if name not in ("verb", "what")]
    raise UserError(_unknown("flag", word, flags or ["--help"]))


def _check_overrides(args: argparse.Namespace, overrides: Mapping[str, str]) -> None:
    of_runs = args.verb == "plot" and args.workdir is not None
    if overrides and (of_runs or args.verb in _OF_RUNS):
        raise UserError(
            f"{args.verb} takes no {OVERRIDE}{next(iter(overrides))}: "
            "a run keeps the config that it was trained with"
        )


def _check_required(args: argparse.Namespace) -> None:
    # Not left to argparse, which would report a misspelt flag as a missing one.
    if args.verb is None or getattr(args, "what", "") is None:
        known = VERBS if args.verb is None else VERBS[args.verb]
        place = f"{PROGRAM} {args.verb or ''}".strip()
        raise UserError(f"`{place}` needs a verb: {', '.join(known)}; see `{place} --help`")
    required = {"config", "workdir"} & vars(args).keys()
    if getattr(args, "dry_run", False):
        required.remove("workdir")
    if args.verb == "sweep":
        required = {"sweep", "workdir"}
    required |= _REQUIRED.get(args.verb, set())
    if args.verb == "plot":
        required -= {"config", "workdir"}
        if (args.config is None) == (args.workdir is None):
            raise UserError("plot needs --workdir, of runs to draw, or --config: one of them")
    for name in sorted(required):
        if getattr(args, name) is None:
            raise UserError(f"{args.verb} needs --{name}; see `{PROGRAM} {args.verb} --help`")


def _check_together(args: argparse.Namespace) -> None:
    """Refuses flags of which one would be ignored."""
    given = {name for name, value in vars(args).items() if value is not None and value is not False}
    if getattr(args, "format", None) == "text":  # its default
        given.remove("format")
    if args.verb == "predict" and "format" not in given and (args.num_outputs or 1) > 1:
        raise UserError("--num_outputs above 1 needs --format=jsonl: text has one line an example")
    if args.verb == "plot" and args.attention is None:
        for name in ("kind", "layer", "base"):
            if getattr(args, name) is not None:
                raise UserError(f"--{name} goes with --attention")
    for name, others in _EXCLUDED.items():
        if name in given and (excluded := sorted(given & others)):
            raise UserError(f"--{excluded[0]} does not go with --{name}; leave one of them out")


_OF_RUNS = ("evaluate", "predict", "chat", "score", "inspect", "import", "export")
_REQUIRED = {
    "score": {"source", "target"},
    "plan": {"device"},
    "inspect": {"to"},
    "import": {"from"},
    "export": {"to", "format"},
}
"""Flags that verbs need besides --config or --workdir."""
_EXCLUDED = {
    "stream": {"num_outputs", "format", "prefixes", "batch_size", "distributed"},
    "seeds": {"dry_run", "distributed"},
    "attention": {"config"},
    "choices": {"split", "source", "target", "command", *DECODE_OPTIONS},
}
"""Flags and those that would do nothing beside them."""


def _check_distributed(args: argparse.Namespace) -> None:
    if getattr(args, "distributed", True):
        return
    for name in ("coordinator", "num_processes", "process_id"):
        if getattr(args, name) is not None:
            raise UserError(f"--{name} goes with --distributed")


def _unknown(kind: str, word: str, known: Collection[str]) -> str:
    begun = [name for name in known if name.startswith(word)]
    near = begun or difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
    return f"unknown {kind} {word}; {hint}"

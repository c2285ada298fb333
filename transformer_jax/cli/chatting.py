"""`chat`: a conversation in the terminal."""

import argparse
import sys
from collections.abc import Iterator
from io import BufferedIOBase
from typing import Any

from transformer_jax.cli import streams
from transformer_jax.cli.lines import read_batches
from transformer_jax.cli.one_line_parser import Verbs
from transformer_jax.cli.shared_flags import (
    DECODE_OPTIONS,
    add_decode_options,
    add_max_length,
    add_run,
    load_run,
)
from transformer_jax.errors import UserError

_HELP = "/reset begins anew, /system TEXT too and says how to answer, /quit ends"


def add_chat(verbs: Verbs) -> None:
    """The verb and its flags."""
    chat = verbs.add_parser(
        "chat",
        help="talk to a run that follows instructions",
        epilog=f"A question a line; {_HELP}.",
    )
    add_run(chat)
    add_max_length(chat)
    add_decode_options(chat)


def chat(args: argparse.Namespace) -> None:
    """Answers each line of stdin behind all that was said before."""
    from transformer_jax.runs.chat import Chat

    stdin = streams.read_stdin()
    given = {name: getattr(args, name) for name in DECODE_OPTIONS}
    options = {name: value for name, value in given.items() if value is not None}
    talk = Chat(load_run(args), **options)
    streams.tell(_HELP)
    for line in _prompted(stdin):
        command, _, rest = line.strip().partition(" ")
        match command:
            case "/quit":
                return
            case "/reset":
                talk.reset()
            case "/system" if rest.strip():
                talk.reset(rest.strip())
            case _ if command.startswith("/"):
                streams.tell(f"no command: {command}; {_HELP}")
            case _ if command:
                _answer(talk, line)


def _prompted(stdin: BufferedIOBase) -> Iterator[str]:
    """The lines, each asked for by a mark where a person types them."""
    lines = read_batches(stdin, most=1)
    while True:
        if stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            return
        yield line[0]


def _answer(talk: Any, line: str) -> None:
    try:
        for piece in talk.ask(line):
            streams.write(piece)
            streams.flush()
        streams.write("\n")
        streams.flush()
    except UserError as error:
        streams.tell(f"error: {error}")

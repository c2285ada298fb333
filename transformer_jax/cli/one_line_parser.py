"""argparse with errors of one line."""

import argparse
from typing import Any, NoReturn

from transformer_jax.cli import streams
from transformer_jax.errors import UserError

PROGRAM = "python -m transformer_jax"
OVERRIDE = "--config."


class OneLineParser(argparse.ArgumentParser):
    """Raises its errors, without the usage text, and takes no abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def print_help(self, file: Any = None) -> None:
        """As every result: a stdout that takes nothing is an error, too."""
        streams.write(self.format_help())
        streams.flush()

    def error(self, message: str) -> NoReturn:
        verb = self.prog.removeprefix(PROGRAM).strip()
        raise UserError(f"{verb}: {message}" if verb else message)


type Verbs = argparse._SubParsersAction[OneLineParser]
"""What `add_subparsers` returns: the verbs are added to it."""

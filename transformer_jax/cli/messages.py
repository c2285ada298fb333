"""Log lines on stderr, without the chatter of libraries."""

import logging
import os
import sys

from transformer_jax.cli import interrupts
from transformer_jax.cli.streams import tell

PACKAGE = "transformer_jax"


def log_to_stderr() -> None:
    """This package's messages from INFO, other libraries' from WARNING, absl's from ERROR.

    Call it before jax is imported, which reads the compiler's log level from the environment.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    handler = _StderrHandler()
    handler.addFilter(_worth_showing)
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger().addHandler(handler)
    logging.getLogger(PACKAGE).setLevel(logging.INFO)
    sys.unraisablehook = _tell_unless_left_over


def _tell_unless_left_over(unraisable: "sys.UnraisableHookArgs") -> None:
    """Passes on what `sys.unraisablehook` gets, but for the remains of a failed save: its threads
    below Python report to an event loop that is gone."""
    error = unraisable.exc_value
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        interrupts.unraisable(unraisable)


def _worth_showing(record: logging.LogRecord) -> bool:
    library = record.name.partition(".")[0]
    # Orbax, Grain and Flax log through absl. asyncio reports each part of a failed save, which the
    # save itself reports once.
    quiet = {PACKAGE: logging.INFO, "absl": logging.ERROR, "asyncio": logging.CRITICAL}
    return record.levelno >= quiet.get(library, logging.WARNING)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"{record.levelname.lower()}: {text}" if record.levelno >= logging.WARNING else text


class _StderrHandler(logging.Handler):
    """Writes above the progress bar, where one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        with tqdm.external_write_mode(file=sys.stderr):
            tell(self.format(record))

"""What a run says meanwhile: log lines on stderr, without the chatter of libraries."""

import logging
import os
import sys

PACKAGE = "transformer_jax"


def log_to_stderr() -> None:
    """The package's messages from INFO up; of the libraries' warnings, and of absl's errors alone.

    Call it before jax is imported: the compiler's own log level is read from the environment then.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    handler = _StderrHandler()
    handler.addFilter(_worth_showing)
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    logging.getLogger().addHandler(handler)
    logging.getLogger(PACKAGE).setLevel(logging.INFO)
    sys.unraisablehook = _tell_unless_left_over


def _tell_unless_left_over(unraisable) -> None:
    """The parts of a save that failed still report to its event loop, from threads below Python,
    when that is gone."""
    error = unraisable.exc_value
    if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
        sys.__unraisablehook__(unraisable)


def _worth_showing(record: logging.LogRecord) -> bool:
    library = record.name.partition(".")[0]
    # Orbax, Grain and Flax speak through absl. What asyncio complains of are the many parts of a
    # save that failed, which the save itself tells once.
    quiet = {PACKAGE: logging.INFO, "absl": logging.ERROR, "asyncio": logging.CRITICAL}
    return record.levelno >= quiet.get(library, logging.WARNING)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"{record.levelname.lower()}: {text}" if record.levelno >= logging.WARNING else text


class _StderrHandler(logging.Handler):
    """Writes around a progress bar, where one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(self.format(record), file=sys.stderr)

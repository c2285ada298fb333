"""Variables of the environment that would end the process before JAX could say so."""

import os
import subprocess
import sys

from transformer_jax.errors import UserError

_READ_XLA_FLAGS = "from jaxlib import xla_client; xla_client.CompileOptions()"


def check_environment() -> None:
    """Imports JAX, which reads the environment.

    Raises:
      UserError: it holds a value that JAX or XLA does not know.
    """
    if "jax" not in sys.modules and os.environ.get("XLA_FLAGS"):
        _check_xla_flags(os.environ["XLA_FLAGS"])
    try:
        import jax  # noqa: F401
    except ValueError as error:
        raise UserError(f"a variable of the environment cannot be used: {error}") from error


def _check_xla_flags(flags: str) -> None:
    """Has another process read them: XLA ends the one in which it does not know a flag."""
    words = [sys.executable, "-c", _READ_XLA_FLAGS]
    told = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if told.returncode:
        *_, reason = ["", *told.stderr.splitlines()]
        raise UserError(f"XLA_FLAGS={flags} cannot be used: {reason.rpartition('] ')[2]}")

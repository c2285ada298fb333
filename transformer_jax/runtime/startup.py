"""Variables of the environment that would end the process before JAX could say so."""

import ctypes
import glob
import importlib.util
import os
import subprocess
import sys
from importlib.util import find_spec

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


# FOLDED runtime.host_memory: Host memory that the process keeps from one step to the next.


# Parameters of mallopt, from glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed_memory() -> None:
    """Asks glibc to keep freed memory rather than to return it to the system.

    On a CPU, XLA frees the buffers of a step at its end. glibc returns such large blocks to the
    system, and the next step pays a page fault for every 4 KiB: a quarter of the step time of a
    small model.

    Call it before JAX starts its threads; later it has no effect. It does nothing without glibc, or
    where JAX has a GPU or TPU.
    """
    if not sys.platform.startswith("linux") or find_spec("jax_plugins") or find_spec("libtpu"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    # One arena: glibc unmaps the arenas of threads once they are empty, whatever the threshold.
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)


# FOLDED runtime.plugins: JAX's plugins for devices that are not here, which `plan` brings to
# machines without them.


COMPILERS = ("libtpu", "jax_cuda13_plugin", "jax_cuda12_plugin")
DEVICES = (
    *("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"),  # the last: AMD's
    *("/dev/accel*", "/dev/vfio/[0-9]*"),
)
"""Files that GPUs and TPUs are reached through."""


def leave_out_absent_devices() -> None:
    """Has JAX use the CPU alone where a maker's compiler is installed and no device is here.

    It would try to start each plugin otherwise, and print for each why it could not. Does nothing
    where the user has chosen (`JAX_PLATFORMS`); must come before JAX is imported.
    """
    installed = any(importlib.util.find_spec(name) for name in COMPILERS)
    if installed and not any(glob.glob(path) for path in DEVICES):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

# SPDX-License-Identifier: Apache-2.0
"""Preparations that must come before JAX starts: environment variables, plugins, glibc's malloc.

This module imports no JAX, so that the command line answers quickly.
"""

import contextlib
import ctypes
import gc
import glob
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

from transformer_jax.errors import UserError, user_errors

COMPILERS = ("libtpu", "jax_cuda13_plugin", "jax_cuda12_plugin")
"""Packages with which `plan` compiles for devices that are not present."""
DEVICES = (
    *("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"),  # the last: AMD's
    *("/dev/accel*", "/dev/vfio/[0-9]*"),
)
"""Device files of GPUs and TPUs."""

_SAFE_PATH = "PYTHONSAFEPATH"
_SET_HERE = "by transformer_jax"
_READ_XLA_FLAGS = "from jaxlib import xla_client; xla_client.CompileOptions()"

# Parameters of mallopt, from glibc's <malloc.h>.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4
_M_ARENA_MAX = -8


def protect_child_paths() -> None:
    """Makes Python processes that this one starts import nothing from the current folder.

    Does nothing if this process imports from there itself, as after `python -m`.
    """
    with contextlib.suppress(FileNotFoundError):  # the current folder is gone
        if os.getcwd() not in map(os.path.abspath, sys.path):
            os.environ.setdefault(_SAFE_PATH, _SET_HERE)


def environment_of_user() -> dict[str, str]:
    """The environment for the user's own programs, without what `protect_child_paths` has set."""
    environment = dict(os.environ)
    if environment.get(_SAFE_PATH) == _SET_HERE:
        del environment[_SAFE_PATH]
    return environment


def collect_garbage_rarely() -> None:
    """Makes Python look for reference cycles after 20,000 new objects, not after 700.

    Imports and tracing create objects that stay, and each search visits many of them again: 0.5 of
    the 9 s to the first step of a small model (experiments/results/speed.md).
    """
    gc.set_threshold(20_000)


def skip_plugins_without_devices() -> None:
    """Makes JAX use the CPU if one of `COMPILERS` is installed and this machine has no device.

    Otherwise JAX would try to start each plugin and print why it could not. Does nothing if the
    user has set JAX_PLATFORMS. Call it before JAX is imported.
    """
    installed = any(importlib.util.find_spec(name) for name in COMPILERS)
    if installed and not any(glob.glob(path) for path in DEVICES):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def check_environment() -> None:
    """Imports JAX, which reads the environment.

    Raises:
      UserError: an environment variable has a value that JAX or XLA does not know.
    """
    if "jax" not in sys.modules and os.environ.get("XLA_FLAGS"):
        _check_xla_flags(os.environ["XLA_FLAGS"])
    with user_errors("a variable of the environment cannot be used"):
        import jax  # noqa: F401


def _check_xla_flags(flags: str) -> None:
    """Lets another process read the flags, because XLA ends a process on an unknown flag."""
    command = [sys.executable, "-c", _READ_XLA_FLAGS]
    completed = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if completed.returncode:
        *_, reason = ["", *completed.stderr.splitlines()]
        raise UserError(f"XLA_FLAGS={flags} cannot be used: {reason.rpartition('] ')[2]}")


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next training step.

    On a CPU, XLA frees the buffers of a step at its end. By default glibc returns such large blocks
    to the system, and the next step pays a page fault for every 4 KiB: a quarter of the step time
    of a small model. Kept blocks are split, so that a step of 0.9 GB can end up with 6 GB; see
    `return_large_blocks`.

    Call it before JAX starts its threads; later it has no effect. Does nothing without glibc, or if
    a GPU or TPU plugin is installed.
    """
    has_plugin = any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))
    if has_plugin or not sys.platform.startswith("linux"):
        return
    mallopt = _glibc("mallopt")
    # One arena, because glibc unmaps empty arenas of threads whatever the threshold.
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)


def return_large_blocks() -> None:
    """Makes glibc return freed blocks above 32 MiB to the system, against `keep_freed_memory`."""
    mallopt = _glibc("mallopt")
    mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # its maximum
    mallopt(_M_MMAP_MAX, 1 << 16)  # its default


def return_unused_memory() -> None:
    """Makes glibc return all pages that are free now, such as those that compilation used."""
    _glibc("malloc_trim")(0)


def _glibc(name: str) -> Callable[..., int]:
    """A function of glibc; one that does nothing where there is no glibc."""
    function: Callable[..., int] = getattr(ctypes.CDLL(None), name, lambda *_: 0)
    return function

"""Host memory that the process keeps from one step to the next."""

import ctypes
import sys
from importlib.util import find_spec

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

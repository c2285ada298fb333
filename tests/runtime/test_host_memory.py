"""Freed memory is used again, seen by the page faults that it spares."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from transformer_jax.runtime.host_memory import keep_freed_memory

if {keep}:
    keep_freed_memory()
for turn in range(20):
    np.ones(2**23)  # 64 MiB, 16,384 pages
    if turn == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep):
    program = PROGRAM.format(keep=keep)
    # NumPy would ask for huge pages, of which a system may have none to give.
    environment = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    return int(subprocess.check_output([sys.executable, "-c", program], env=environment))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone is asked")
def test_what_was_freed_is_used_again():
    assert page_faults(keep=True) < 1000 < page_faults(keep=False)

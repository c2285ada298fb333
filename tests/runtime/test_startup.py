"""Variables of the environment that JAX cannot use."""

import os
import platform
import subprocess
import sys

import pytest

from transformer_jax.runtime import startup


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("XLA_FLAGS", "--xla_nonsense", "XLA_FLAGS=--xla_nonsense cannot be used: Unknown flag"),
        ("JAX_ENABLE_X64", "maybe", "invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'"),
        ("JAX_PLATFORMS", "abacus", "JAX_PLATFORMS=abacus cannot be used: Unable to initialize"),
    ],
)
def test_what_jax_cannot_use_is_told_in_one_line(name, value, told):
    words = [sys.executable, "-m", "transformer_jax", "evaluate", "--workdir=absent"]
    answer = subprocess.run(words, env=os.environ | {name: value}, capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ") and answer.stderr.count("\n") == 1
    assert told in answer.stderr


# FOLDED tests/runtime/test_startup.py: Freed memory is used again, seen by the page faults
# that it spares.


PROGRAM = """
import resource
import numpy as np
from transformer_jax.runtime.startup import keep_freed_memory

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


# FOLDED tests/runtime/test_startup.py: Compilers of devices that are not here.


@pytest.mark.parametrize(
    ("installed", "devices", "chosen", "expected"),
    [
        (True, [], None, "cpu"),
        (True, ["/dev/nvidia0"], None, None),
        (False, [], None, None),
        (True, [], "tpu", "tpu"),
    ],
    ids=["a compiler alone", "a device too", "neither", "the user has chosen"],
)
def test_the_cpu_is_used_where_a_compiler_has_no_device(
    installed, devices, chosen, expected, monkeypatch
):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if chosen:
        monkeypatch.setenv("JAX_PLATFORMS", chosen)
    monkeypatch.setattr(startup.importlib.util, "find_spec", lambda name: installed or None)
    monkeypatch.setattr(startup.glob, "glob", lambda path: devices)
    startup.leave_out_absent_devices()
    assert os.environ.get("JAX_PLATFORMS") == expected

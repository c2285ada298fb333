"""Environment variables that JAX cannot use, freed memory, and plugins without a device."""

import os
import platform
import subprocess
import sys

import pytest

from transformer_jax.runtime import startup


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("XLA_FLAGS", "--xla_nonsense", "XLA_FLAGS=--xla_nonsense cannot be used: Unknown flag"),
        ("JAX_ENABLE_X64", "maybe", "invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'"),
        ("JAX_PLATFORMS", "abacus", "JAX_PLATFORMS=abacus cannot be used: Unable to initialize"),
    ],
)
def test_a_variable_that_jax_cannot_use_is_one_line_of_error(name, value, message):
    words = [sys.executable, "-m", "transformer_jax", "evaluate", "--workdir=absent"]
    answer = subprocess.run(words, env=os.environ | {name: value}, capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ") and answer.stderr.count("\n") == 1
    assert message in answer.stderr


PROGRAM = """
import resource
import numpy as np
from transformer_jax.runtime.startup import keep_freed_memory, return_large_blocks

if {keep}:
    keep_freed_memory()
if {returns}:
    return_large_blocks()
for turn in range(20):
    np.ones(2**23)  # 64 MiB, 16,384 pages
    if turn == 0:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(keep, returns=False):
    program = PROGRAM.format(keep=keep, returns=returns)
    # Page faults of huge pages, which NumPy requests, would not be comparable.
    environment = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    return int(subprocess.check_output([sys.executable, "-c", program], env=environment))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again_without_page_faults():
    assert page_faults(keep=True) < 1000 < page_faults(keep=False)
    assert page_faults(keep=True, returns=True) > 1000


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
def test_jax_uses_the_cpu_if_a_plugin_is_installed_without_a_device(
    installed, devices, chosen, expected, monkeypatch
):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if chosen:
        monkeypatch.setenv("JAX_PLATFORMS", chosen)
    monkeypatch.setattr(startup.importlib.util, "find_spec", lambda name: installed or None)
    monkeypatch.setattr(startup.glob, "glob", lambda path: devices)
    startup.skip_plugins_without_devices()
    assert os.environ.get("JAX_PLATFORMS") == expected

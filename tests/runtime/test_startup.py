# SPDX-License-Identifier: Apache-2.0
"""Environment variables that JAX cannot use, freed memory, and plugins without a device."""

import os
import platform
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from transformer_jax.runtime import startup

UNUSABLE = [
    ("XLA_FLAGS", "--xla_nonsense", "XLA_FLAGS=--xla_nonsense cannot be used: Unknown flag"),
    ("JAX_ENABLE_X64", "maybe", "invalid truth value 'maybe' for environment 'JAX_ENABLE_X64'"),
    ("JAX_PLATFORMS", "abacus", "JAX_PLATFORMS=abacus cannot be used: Unable to initialize"),
]


@pytest.mark.parametrize(("name", "value", "message"), UNUSABLE)
def test_a_variable_that_jax_cannot_use_is_one_line_of_error(name, value, message):
    words = [sys.executable, "-m", "transformer_jax", "train", "--config=quickstart", "--dry_run"]
    environment = os.environ | {"XLA_FLAGS": ""} | {name: value}
    answer = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ") and answer.stderr.count("\n") == 1
    assert message in answer.stderr


FAULTS = """
import resource
import numpy as np
from transformer_jax.runtime import startup

counts = []
for change, size in ((int, 1), (startup.keep_freed_memory, 1), (startup.return_large_blocks, 2)):
    change()
    for turn in range(4):
        np.ones(size * 2**23)  # 64 MiB, 16,384 pages; the last ones do not fit what is kept
        if turn == 0:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*counts)
"""
FREED = """
import ctypes
from pathlib import Path
from transformer_jax.runtime.startup import keep_freed_memory, return_unused_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4  # KiB

keep_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [c.malloc(10**5) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 10**5)
for block in blocks[:-1]:  # the last one keeps the heap from shrinking
    c.free(block)
before = resident()
return_unused_memory()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_freed_memory_is_used_again_without_page_faults_or_returned():
    # Page faults of huge pages, which NumPy requests, would not be comparable.
    environment = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    counts = subprocess.check_output([sys.executable, "-c", FAULTS], env=environment)
    plain, kept, returned = map(int, counts.split())
    assert kept < 1000 < min(plain, returned)
    assert int(subprocess.check_output([sys.executable, "-c", FREED])) > 0.9 * 100_000_000 / 1024


def test_jax_uses_the_cpu_if_a_plugin_is_installed_without_a_device(monkeypatch):
    def platforms(installed, devices, before):
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", before)
            patch.setattr(startup.importlib.util, "find_spec", lambda name: installed or None)
            patch.setattr(startup.glob, "glob", lambda path: devices)
            startup.skip_plugins_without_devices()
        return before

    assert platforms(True, [], {}) == {"JAX_PLATFORMS": "cpu"}
    assert platforms(True, ["/dev/nvidia0"], {}) == platforms(False, [], {}) == {}
    assert platforms(True, [], {"JAX_PLATFORMS": "tpu"}) == {"JAX_PLATFORMS": "tpu"}


CHILDREN = """
import subprocess, sys
from transformer_jax.runtime.startup import environment_of_user, protect_child_paths
protect_child_paths()
words = [sys.executable, "-c", "import argparse"]
print(subprocess.run(words, capture_output=True, text=True).stderr.count("executed"))
ended = subprocess.run(words, env=environment_of_user(), capture_output=True, text=True)
print(ended.stderr.count("executed"))
"""


@pytest.mark.parametrize(("flag", "counts"), [("-P", "0\n1\n"), ("-B", "1\n1\n")])
def test_processes_import_from_the_current_folder_only_if_this_one_does(tmp_path, flag, counts):
    """The user's own programs do in any case."""
    (tmp_path / "argparse.py").write_text("import sys\nsys.stderr.write('executed')\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONSAFEPATH", None)
    words = [sys.executable, flag, "-c", CHILDREN]
    assert subprocess.check_output(words, cwd=tmp_path, env=environment, text=True) == counts

# SPDX-License-Identifier: Apache-2.0
"""Tests of layers, models and searches, on this device."""

import os
import re
import subprocess
import sys
from collections import Counter

from experiments.devices.check import Check

FOLDERS = ["tests/nn", "tests/models", "tests/decoding", "-n8"]
DRY_FOLDERS = ["tests/nn/test_masks.py"]
SECONDS = 95  # what has run by then is counted
MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.10"}
"""Each of eight workers allocates a tenth of the device's memory at most."""


def run(check: Check) -> None:
    log = check.out / "pytest.log"
    words = [sys.executable, "-m", "pytest", "-v", "--tb=line", "-p", "no:cacheprovider"]
    words += DRY_FOLDERS if check.dry else FOLDERS
    with log.open("w") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env=os.environ | MEMORY)
        try:
            status = str(process.wait(None if check.dry else SECONDS))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = "stopped"
    outcomes = re.findall(  # a test's line has its name before the outcome, or after with workers
        r"^(?:\[gw.*\] (PASSED|FAILED|ERROR) |tests/\S+ (PASSED|FAILED|ERROR)\b)",
        log.read_text(errors="replace"),
        re.MULTILINE,
    )
    counts = Counter("".join(groups).lower() for groups in outcomes)
    is_good = status in ("0", "stopped") and counts.keys() == {"passed"}
    check.record("pytest", ok=is_good, status=status, log=str(log), **counts)

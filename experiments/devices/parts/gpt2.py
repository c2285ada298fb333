# SPDX-License-Identifier: Apache-2.0
"""GPT-2 with 124 million parameters: its step alone, in a loop, its profile, its losses."""

from experiments.devices.check import Check
from experiments.devices.steps import GPT2, compare_with_plain, measure


def run(check: Check) -> None:
    program, losses, _ = measure(check, GPT2)
    del program  # before the next one needs memory
    compare_with_plain(check, GPT2, losses)

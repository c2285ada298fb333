# SPDX-License-Identifier: Apache-2.0
"""The paper's big model: its step."""

from experiments.devices.check import Check
from experiments.devices.steps import BIG, batch_of, compile_config, time_step


def run(check: Check) -> None:
    program = compile_config(check, BIG, {})
    time_step(check, "step alone", program, batch_of(check, program))

# SPDX-License-Identifier: Apache-2.0
"""Searches on random tokens: base with beam 4 and greedy, GPT-2 greedy."""

import transformer_jax as tj
from experiments.devices.check import Check
from experiments.devices.steps import BASE, GPT2, TINY_SIZES
from transformer_jax.tools import benchmark

SIZES = {"batch_size": 64, "source_length": 24, "output_length": 32, "steps": 3}
DRY_SIZES = {"batch_size": 4, "source_length": 8, "output_length": 4, "steps": 1}
GREEDY = {"decode.temperature": None, "decode.top_k": None}
SEARCHES = {
    "base, beam 4": (BASE, {}, {"beam_size": 4}),
    "base, greedy": (BASE, {}, {"beam_size": 1}),
    "GPT-2, greedy": (GPT2, GREEDY, {"batch_size": 16}),
}


def run(check: Check) -> None:
    for name, (config, fields, options) in SEARCHES.items():
        with check.attempt(name):
            tiny = TINY_SIZES[config] if check.dry else {}
            sizes = SIZES | options | (DRY_SIZES if check.dry else {})
            report = benchmark.decode(tj.config(config, tiny | fields), **sizes)
            shown = ("tokens_per_s", "step_ms", "compile_s", "beam_size", "weights")
            check.record(name, **{key: report[key] for key in shown})

# SPDX-License-Identifier: Apache-2.0
"""Runs the oracles of two devices on right and wrong components; prints the outcomes as JSON.

Not a test: `test_training_oracles.py` starts it in a process with two forced host devices.
"""

import dataclasses
import gc
import json
import sys
from functools import partial
from pathlib import Path

from conftest import CONFIG, SIZES, WRONG

from transformer_jax.lab.verification.oracles import DEVICE_ORACLES
from transformer_jax.lab.verification.outcomes import run_oracle
from transformer_jax.lab.verification.subject import Subject, shrunk
from transformer_jax.runs.config import resolve_file

RECIPE = Path(__file__).parents[3] / "docs" / "recipes" / "position_encoding.py"
RUNS = {
    # Biases that are learned travel around the ring of a divided sequence.
    "right": (
        {"model.positions": "kerple"},
        ["pmap = one device", "fsdp axis = one device", "sequence axis = one device"],
    ),
    "batch norm": ({"model.norm": "device_batch"}, ["pmap = one device", "data axis = one device"]),
    "odd heads": ({"model.num_heads": 1}, ["tensor axis = one device"]),
}


def main():
    found = {}
    for name, (changes, oracles) in RUNS.items():
        subject = Subject(shrunk(resolve_file(CONFIG, SIZES | changes, [WRONG, RECIPE]), SIZES))
        outcomes = [
            run_oracle(each, partial(DEVICE_ORACLES[each].compare, subject)) for each in oracles
        ]
        found[name] = {one.oracle: dataclasses.asdict(one) for one in outcomes}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    gc.disable()
    main()

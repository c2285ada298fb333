# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios on eight forced host devices, in turn; prints {scenario: results} as JSON.

Not a test: the fixture `eight_devices` starts it in a process of its own.
"""

import gc
import importlib
import json
import sys

# `divided_tokens`, which changes sizes of `eight_devices`, comes last.
SCENARIOS = ("eight_devices", "divided_tokens")

if __name__ == "__main__":
    gc.disable()  # tracing makes objects by the million, few of them in cycles
    results = {name: importlib.import_module(name).main() for name in SCENARIOS}
    json.dump(results, sys.stdout)

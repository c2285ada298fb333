# SPDX-License-Identifier: Apache-2.0
"""The changelog names every module, function and class that was moved or renamed."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOVED = json.loads((ROOT / "transformer_jax/runs/moved_names.json").read_text())


def test_every_moved_name_is_in_the_changelog():
    rows = (ROOT / "CHANGELOG.md").read_text().splitlines()
    names_by_module = {}
    for row in rows:
        if found := re.match(r"\| `([\w.]+)` \| (.*) \|$", row):
            names_by_module.setdefault(found[1], set()).update(re.findall(r"`([\w.]+)`", found[2]))
    missing = []
    for old, new in MOVED.items():
        old, new = (name.removeprefix("transformer_jax.") for name in (old, new))
        module, _, name = new.rpartition(".")
        if old in names_by_module.get(new, ()):
            continue
        if old.rpartition(".")[2] not in names_by_module.get(module or "transformer_jax", ()):
            missing.append(old)
    assert missing == []

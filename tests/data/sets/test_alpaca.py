# SPDX-License-Identifier: Apache-2.0
"""Alpaca: held-out splits."""

import gzip
import json

import pytest

from transformer_jax.conversations import conversation_from_json
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split


@pytest.mark.parametrize("name", ["alpaca_data.jsonl.gz", "alpaca_data.json"])
def test_splits_do_not_overlap(tmp_path, name):
    rows = [{"instruction": f"i{n}", "input": "", "output": f"o{n}"} for n in range(120)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    is_array = name.endswith(".json")  # as the authors of the set write it
    content = json.dumps(rows, indent=4).encode() if is_array else gzip.compress(lines)
    (tmp_path / name).write_bytes(content)
    config = DataConfig(name="alpaca", dir=str(tmp_path))
    parts = {
        split: [
            conversation_from_json(one["turns"])[0].content for one in open_split(config, split)
        ]
        for split in ("train", "valid", "test")
    }
    assert parts["valid"] == ["i0", "i50", "i100"] and parts["test"] == ["i1", "i51", "i101"]
    assert sorted(sum(parts.values(), [])) == sorted(row["instruction"] for row in rows)
    assert len(parts["train"]) == 114

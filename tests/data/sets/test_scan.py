# SPDX-License-Identifier: Apache-2.0
"""SCAN."""

import gzip

import pytest

from transformer_jax.data.config import DataConfig
from transformer_jax.data.sets.scan import SCAN, SETS
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError


@pytest.mark.parametrize("name", SETS)
def test_commands_are_read_and_some_are_held_out(tmp_path, name):
    lines = [f"IN: walk {n} times OUT: {' '.join(['I_WALK'] * n)}" for n in range(1, 41)]
    end = SETS[name][1]
    packed = gzip.compress("".join(f"{line}\n" for line in lines).encode())
    (tmp_path / f"tasks_train_{end}.txt.gz").write_bytes(packed)
    (tmp_path / f"tasks_test_{end}.txt").write_text("IN: jump OUT: I_JUMP \n")

    train, valid, test = (
        list(open_split(DataConfig(name=name, dir=str(tmp_path)), split))
        for split in ("train", "valid", "test")
    )
    assert test == [{"source": "jump", "target": "I_JUMP"}]
    assert len(train) == 38 and len(valid) == 2
    assert train[0] == {"source": "walk 2 times", "target": "I_WALK I_WALK"}
    held_out = {pair["source"] for pair in valid}
    assert not held_out & {pair["source"] for pair in train}


def test_an_invalid_line_is_named(tmp_path):
    (tmp_path / "tasks_test_simple.txt").write_text("IN: jump OUT: I_JUMP\njump\tI_JUMP\n")
    with pytest.raises(UserError, match="line 2: not"):
        open_split(DataConfig(name="scan_simple", dir=str(tmp_path)), "test")


def test_all_downloads_are_pinned():
    assert len(SCAN.files) == 6
    for name, remote in SCAN.files.items():
        assert remote.name == name and len(bytes.fromhex(remote.sha256)) == 32

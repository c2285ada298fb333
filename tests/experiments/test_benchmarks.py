# SPDX-License-Identifier: Apache-2.0
"""The programs that measure, on runs of moments."""

import json
import shlex
import sys
from pathlib import Path

import pytest

import transformer_jax as tj
from experiments.benchmarks import input_pipeline, speed_table, where_time_goes
from tests.conftest import QUICKSTART
from transformer_jax.cli.parser import parse


@pytest.fixture
def words(tiny):
    return [f"--config={QUICKSTART}", *(f"--config.{name}={value}" for name, value in tiny.items())]


def test_the_input_pipeline_delivers_tokens(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["input_pipeline.py", *words, "--batches=5"])
    assert input_pipeline.main() == 0
    found = json.loads(capsys.readouterr().out)
    # Of both sides, less the padding, up to a batch before which the pipeline packs anew.
    assert found["tokens"] > 5 * 192
    assert found["workers"] == 0 and found["main_cpu_s_per_million"] > 0
    assert found["tokens_per_s"] > 0


def test_time_goes_to_the_parts_of_the_model(words, monkeypatch, capsys):
    sizes = ["--batch_size=2", "--source_length=6", "--output_length=4", "--beam_size=2"]
    words = ["where_time_goes.py", "decode", *words, *sizes, "--steps=1", "--rows=200"]
    monkeypatch.setattr(sys, "argv", words)
    assert where_time_goes.main() == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    names = [row[0] for row in rows]
    times = [float(row[1]) for row in rows]
    assert times == sorted(times, reverse=True) and times[0] > 0
    assert any(name.endswith("self_attention query nd,df->nf dot_general") for name in names)
    assert any("feed_forward outer" in name for name in names)
    assert sum(float(row[2].rstrip("%")) for row in rows) == pytest.approx(100, abs=3)


def speaker(tokens_per_s):
    return f'{sys.executable} -c \'print("{{\\"tokens_per_s\\": {tokens_per_s}}}")\''


def test_the_table_of_speeds_has_a_row_per_work_and_peer(tmp_path, monkeypatch, capsys):
    works = {"train base": speaker(3000), "train small": speaker(7), "other": speaker(1)}
    monkeypatch.setattr(speed_table, "WORKS", works)
    peers = tmp_path / "peers"
    peers.write_text(f"train base: {speaker(2000)}\n\ntrain base: {speaker(1500)}\n")
    monkeypatch.setattr(sys, "argv", ["speed_table.py", "--works=train", f"--peers={peers}"])
    assert speed_table.main() == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0], row[1], row[-1]) for row in rows[:2]] == [
        ("train base", "3,000", "1.50"),
        ("train base", "3,000", "2.00"),
    ]
    assert rows[2][:2] == ["train small", "7"] and len(rows) == 3
    peers.write_text("train bse: true\n")
    assert speed_table.main() == 2
    assert "'train bse: true' is not WORK: COMMAND" in capsys.readouterr().err


def test_the_works_are_commands_of_this_program():
    for command in speed_table.WORKS.values():
        words = shlex.split(command)
        if "-m" in words:
            args = parse(words[words.index("-m") + 2 :])
            assert tj.config(args.config, args.overrides)
        else:
            assert Path(words[1]).is_file()

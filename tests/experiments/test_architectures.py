# SPDX-License-Identifier: Apache-2.0
"""Recurrent models beside the Transformer: what is trained, scored, kept and drawn."""

import csv
import json
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

import transformer_jax as tj
from experiments import architectures
from tests.lab.analysis.drawn_attention import SOURCE, TARGET, drawn_attention
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split

SPEEDS = {"no_attention": 10.0, "attention": 20.0, "Transformer": 15.0}  # ms of an update
PAIRS = open_split(DataConfig(), "test")[:30]
OF_A_RUN = {"decay_steps": None, "warmup_steps": None}
"""What hangs on how long it is."""


@pytest.fixture
def train(monkeypatch):
    """In place of training: a run of the quick start's data that writes the sources."""
    trained = []

    def train(config, workdir):
        trained.append((workdir.parent.name, config.train.num_steps, config.seed))
        workdir.mkdir(parents=True, exist_ok=True)
        speed = {"step": 10, "step_ms": SPEEDS[workdir.parent.name.rpartition("_")[0]]}
        record = json.dumps({**speed, "split": "train", "tokens_per_s": 1000.0})
        (workdir / "metrics.jsonl").write_text(f"{record}\n" * 3)
        return SimpleNamespace(
            workdir=workdir,
            step=config.train.num_steps,
            settings=SimpleNamespace(data=None),
            params={"table": jnp.ones((2, 3))},
            predict=lambda lines: [pair["target"] for pair in PAIRS],
            attention=lambda source, target: drawn_attention(
                {"encoder": SOURCE, "decoder": TARGET}, layers=1
            ),
        )

    monkeypatch.setattr(tj, "train", train)
    monkeypatch.setattr(architectures, "open_split", lambda data, split: PAIRS)
    return trained


def test_equal_time_and_equal_updates(train, tmp_path, monkeypatch, capsys):
    output = tmp_path / "results" / "found"
    words = [f"--workdir={tmp_path / 'runs'}", f"--output={output}", "--minutes=0.1", "--seeds=2"]
    monkeypatch.setattr(sys, "argv", ["architectures", *words])
    architectures.main()
    fits = {"no_attention": 600, "attention": 300, "Transformer": 400}  # in 6 s
    expected = [(f"{name}_60", 60, 0) for name in SPEEDS]
    expected += [(f"{name}_{n}", n, seed) for name, n in fits.items() for seed in (0, 1)]
    expected += [(f"{name}_300", 300, seed) for name in fits for seed in (0, 1)]
    assert train == expected
    table = list(csv.DictReader(output.with_suffix(".csv").open()))
    rows = [f"equal time: {system}" for system in ("no attention", "attention")]
    assert [row["row"] for row in table[:2]] == rows
    assert [float(row["updates_mean"]) for row in table] == [600, 300, 400, 300, 300, 300]
    assert [float(row["BLEU_mean"]) for row in table] == pytest.approx([100] * 6)
    assert table[0]["parameters"] == "6" and float(table[0]["seconds"]) == 12
    assert "| equal updates: Transformer | 300.0 ± 0.0 |" in capsys.readouterr().out
    for path in (output.with_suffix(".png"), output.with_name("found_alignments.png")):
        assert path.read_bytes().startswith(b"\x89PNG")

    train.clear()
    monkeypatch.setattr(architectures, "score_by_length", lambda *args: pytest.fail("done before"))
    architectures.main()
    assert not any(name.endswith("_60") for name, _, _ in train)


def test_systems_differ_in_their_models_alone(monkeypatch):
    found = [
        tj.config(path, architectures.SHARED).to_dict() for path in architectures.SYSTEMS.values()
    ]
    for section in ("task", "tokenizer", "data", "optimizer", "decode"):
        first, *others = ({**one[section], **OF_A_RUN} for one in found)
        assert others == [first, first], section


def test_bleu_by_length():
    sources = ["a b c", "a b c d e f g h i", "a b c d e f g h i j"]
    outputs = ["one two three four five", "wrong", "one two three four five"]
    found = architectures.score_by_length(sources, outputs, ["one two three four five"] * 3)
    assert found["1-8 words"] == pytest.approx(100) and found["9-10 words"] < 100
    assert list(found) == ["BLEU", "1-8 words", "9-10 words"]

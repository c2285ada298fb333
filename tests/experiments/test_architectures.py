# SPDX-License-Identifier: Apache-2.0
"""Recurrent models beside the Transformer: how long each trains, and scores by length."""

import pytest

import transformer_jax as tj
from experiments import architectures

OF_A_RUN = {"decay_steps": None, "warmup_steps": None}
"""What hangs on how long it is."""


def test_steps_for_equal_time_and_equal_steps_are_planned_once(tmp_path):
    step_ms = {"no attention": 10.0, "attention": 20.0, "Transformer": 15.0}
    speeds = {name: {"step_ms": ms} for name, ms in step_ms.items()}
    steps = architectures.plan(tmp_path, 6.0, speeds)
    assert steps["time"] == {name: 6000 / ms for name, ms in step_ms.items()}
    assert steps["updates"] == dict.fromkeys(step_ms, 300)
    assert architectures.plan(tmp_path, 60.0, speeds) == steps


def test_systems_differ_in_their_models_alone():
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

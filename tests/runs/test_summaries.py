# SPDX-License-Identifier: Apache-2.0
"""Objects typed into a notebook cell show a few lines; test_summary checks their form."""

import copy

import numpy as np
import pytest
from ml_collections import ConfigDict

import transformer_jax as tj
from transformer_jax.decoding.beam_tree import BeamTree, Node
from transformer_jax.lab.analysis.walk.step import Axis, Walk, WalkStep
from transformer_jax.summary import MOST_LINES

PLACE = ("encoder", "layer 0")
AXES = (Axis("query"), Axis("key"))
STEP = WalkStep("a", PLACE, "b", "c", "d", "e", "f", "<script>", np.ones((9, 9)), AXES)
NODE = Node(0, None, 0, "<script>", 0.0, "start", None, "")
SHOWN = {
    "run": lambda run: run,
    "a patched run": lambda run: run.patched({"decoder.layer_0": 0}),
    "config": lambda run: run.config,
    "a section": lambda run: run.config.data,
    "task": lambda run: run.task,
    "model": lambda run: run.model,
    "tokenizers": lambda run: run.tokenizer,
    "tokenizer": lambda run: run.tokenizer["source"],
    "inputs": lambda run: run.model_inputs("A dog.", "Ein Hund."),
    "attention": lambda run: run.attention("A dog.", "Ein Hund."),
    "hidden": lambda run: run.hidden("A dog.", "Ein Hund."),
    "walk": lambda run: Walk({"text": "<script>"}, [STEP] * 200),
    "a step": lambda run: STEP,
    "importance": lambda run: run.head_importance(),
    "beam tree": lambda run: BeamTree(4, 0.6, (NODE,) * 300, (0,)),
    "data": lambda run: tj.read_data(run.config, "train"),
    "sweep": lambda run: tj.Sweep("a.py", {"a": {}, "b": {"seed": 1}}, base=run.config.to_dict()),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_cell_shows_a_few_lines(name, trained):
    shown = SHOWN[name](trained)
    assert len(repr(shown).splitlines()) <= MOST_LINES
    assert "<script>" not in getattr(shown, "_repr_html_", str)() or name == "attention"


def test_a_run_says_what_it_is(trained):
    lines = repr(trained).splitlines()
    assert lines[0] == "Run"
    assert lines[1].split()[0] == "workdir" and lines[1].endswith(trained.workdir.name)
    assert any(line.split() == ["step", "30", "of", "30"] for line in lines)


def test_a_config_shows_what_was_chosen_and_stays_a_config(tiny_config):
    config = tiny_config({"model.d_ff": 48})
    assert isinstance(config, ConfigDict) and config == ConfigDict(config.to_dict())
    assert type(copy.deepcopy(config)) is type(config)
    assert "d_ff=48" in repr(config) and "label_smoothing" not in repr(config)
    assert "label_smoothing" in str(config)
    assert repr(config.train).startswith("Config\n") and "num_steps" in repr(config.train)

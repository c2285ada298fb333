# SPDX-License-Identifier: Apache-2.0
"""Proposals: their forms, and what is refused without training."""

import json
import os
from pathlib import Path

from tests.conftest import dotted
from transformer_jax.lab.night.definition import read_proposals, rule_of


def written(folder, name, content, arrived=1):
    path = folder / "proposals" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    os.utime(path, (arrived, arrived))


def test_three_forms_are_read_and_no_code_runs(tmp_path, monkeypatch):
    good = {"why": "It helps.", "overrides": {"model.activation": "mine"}}
    component = '"""It helps."""\nOVERRIDES: dict = {"model.activation": "mine"}\n# no\n\n1 / 0\n'
    written(tmp_path, "one.json", good, 3)
    written(tmp_path, "two.py", component, 2)
    written(tmp_path, "three/proposal.json", good)
    written(tmp_path, "three/mine.py", "1 / 0\n")
    os.utime(tmp_path / "proposals" / "three", (1, 1))
    written(tmp_path, ".four.json", "{")
    written(tmp_path, "five.partial", "{")
    proposals = read_proposals(tmp_path)
    assert [p.name for p in proposals] == ["three", "two", "one"]
    for proposal in proposals:
        assert (proposal.why, dict(proposal.overrides)) == tuple(good.values())
        assert not proposal.fault
    assert [p.lines for p in proposals] == [1, 3, 0]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", lambda path: os.lstat("/nowhere"))  # they were just renamed
        assert read_proposals(tmp_path) == []
    before = proposals[0].digest
    written(tmp_path, "three/mine.py", "2 / 0\n")
    assert read_proposals(tmp_path)[-1].digest != before


def test_each_fault_has_its_rule(tmp_path):
    def good(**overrides):
        return {"why": "It helps.", "overrides": dotted(overrides)}

    cases = {
        "a b.json": ("name", good(model__d_model=8)),
        "baseline.json": ("name", good(model__d_model=8)),
        "cut.json": ("form", '{"why": "'),
        "list.json": ("form", "[]"),
        "nothing.json": ("form", good()),
        "silent.json": ("form", {"overrides": {"model.d_model": 8}}),
        "more.json": ("form", good(model__d_model=8) | {"promote": True}),
        "syntax.py": ("form", "def"),
        "call.py": ("form", '"""It helps."""\nOVERRIDES = open("x")\n'),
        "set.py": ("form", '"""It helps."""\nOVERRIDES = {"model.d_model": {8}}\n'),
        "key.py": ("form", '"""It helps."""\nOVERRIDES = {[]: 8}\n'),
        "endless.json": ("form", '{"why": "It helps.", "overrides": {"model.d_model": 1e999}}'),
        "seed.json": ("seeds", good(seed=7)),
        "longer.json": ("budget", good(train__num_steps=99)),
        "rows.json": ("budget", good(train__accumulation_steps=1)),
        "pretrained.json": ("budget", good(train__init_from="runs/other")),
        "valid.json": ("data", good(data__train_text="valid.txt")),
        "metric.json": ("metric", good(eval__num_examples=3)),
        "tokens.json": ("metric", good(tokenizer__vocab_size=99)),
        "command.json": ("outside", good(train__callbacks="mine")),
    }
    for name, (_, content) in cases.items():
        written(tmp_path, name, content)
    rules = {p.name: p.fault and p.fault[0] for p in read_proposals(tmp_path)}
    assert rules == {name.rpartition(".")[0]: rule for name, (rule, _) in cases.items()}
    assert rule_of("model.d_model") == rule_of("optimizer.name") == rule_of("train.loss") == ""
    written(tmp_path, "twice.json", good(model__d_model=8), 1)
    written(tmp_path, "twice.py", '"""Helps."""\nOVERRIDES = {"model.d_model": 8}\n', 2)
    twice = [p.fault[:1] for p in read_proposals(tmp_path) if p.name == "twice"]
    assert twice == [(), ("name",)]

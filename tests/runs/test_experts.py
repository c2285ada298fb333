# SPDX-License-Identifier: Apache-2.0
"""A run with experts records their load, resumes with their biases, and predicts."""

import json

import numpy as np

import transformer_jax as tj
from tests.conftest import QUICKSTART

EXPERTS = {
    "model.dropout_rate": 0.0,
    "model.feed_forward": "experts",
    "model.experts.num_experts": 4,
    "model.experts.router": "sigmoid",
    "model.experts.bias_rate": 0.01,
    "model.experts.capacity_factor": 1.0,
    "checkpoint.every_steps": 1,
    "eval.every_steps": 4,
    "logging.every_steps": 1,
}


def test_a_run_with_experts_records_their_load_and_resumes(tiny_language_model, tmp_path):
    for steps in (1, 2):
        config = tj.config(QUICKSTART, tiny_language_model | EXPERTS | {"train.num_steps": steps})
        run = tj.train(config, tmp_path)
    biases = run.params["decoder"]["layer_0"]["feed_forward"]["router_bias_steps"]
    assert set(np.abs(biases).tolist()) <= {0, 1, 2} and np.abs(biases).max() > 0
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, second = (record for record in records if record["split"] == "train")
    assert 0 < first["aux/dropped"] < 1 <= first["aux/load"] <= 4
    assert second["aux/balance"] != first["aux/balance"]
    assert tj.load(tmp_path).predict(["The dog"]) == run.predict(["The dog"])

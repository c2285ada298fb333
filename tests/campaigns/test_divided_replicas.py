# SPDX-License-Identifier: Apache-2.0
"""Replicas that two devices divide are those of one device, also beside one that diverges."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART
from tests.runs.test_seeds import losses
from transformer_jax.runs.seeds import seed_configs, train_replicas

PROGRAM = """
import json, sys, jax
from ml_collections import ConfigDict
from transformer_jax.runs.config import resolve
from transformer_jax.runs.seeds import seed_configs, train_replicas
from transformer_jax.runs.settings import COMMAND
from transformer_jax.training import optimizer
# No learning rate that a config may have is sure to diverge so soon.
optimizer.check_fields = lambda fields: None
config = ConfigDict(json.load(open(sys.argv[1])))
configs = seed_configs(config, 2)
configs["seed_0"] = resolve(configs["seed_0"], {"optimizer.learning_rate": 1e12}, (), COMMAND)
runs = train_replicas(configs, sys.argv[2])
kernel = runs["seed_0"].params["decoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]
print(jax.device_count(), len(kernel.devices()))
"""


def test_devices_divide_the_replicas_and_one_that_diverges_leaves_the_other(
    tiny_language_model, tmp_path
):
    changes = {"train.num_steps": 3, "eval.every_steps": 3, "logging.every_steps": 1}
    config = tj.config(QUICKSTART, tiny_language_model | changes | {"model.scan_layers": True})
    train_replicas(seed_configs(config, 2), tmp_path / "alone")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=2"
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "config.json", tmp_path / "group"],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["2", "2"]
    diverged, healthy = (losses(tmp_path / "group" / f"seed_{seed}") for seed in range(2))
    np.testing.assert_allclose(healthy, losses(tmp_path / "alone" / "seed_1"), rtol=1e-5)
    first = losses(tmp_path / "alone" / "seed_0")[0]
    assert diverged[0] == pytest.approx(first, rel=1e-5)
    assert None in diverged  # JSON knows no NaN

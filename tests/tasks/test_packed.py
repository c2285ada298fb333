"""Tasks that predict tokens have the same loss, sums and gradients in tiles of the vocabulary."""

import math
import re

import jax
import numpy as np
import pytest

from transformer_jax.runs import build
from transformer_jax.runs.config import complete_config, read_settings

V, ROWS, LENGTH = 45, 3, 12
MODEL = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_layers": 1, "dtype": "float32"}
MODEL |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout_rate": 0.2}
ARCHITECTURES = {
    "translation": "encoder_decoder",
    "language_modeling": "decoder_only",
    "masked_lm": "encoder_only",
}
TASKS = pytest.mark.parametrize("name", ARCHITECTURES)


def task_of(name, tiles):
    given = {
        "task": {"name": name, "mask_rate": 0.5},
        "model": MODEL | {"architecture": ARCHITECTURES[name]},
        "data": dict.fromkeys(("max_length", "max_source_length", "max_target_length"), LENGTH),
        "train": {"loss_tiles": tiles},
    }
    settings = read_settings(complete_config(given, "test"))
    return build.build_task(settings, dict.fromkeys(("source", "target", "text"), V), None)


def batch_of(task):
    """Rows of two sequences, the second of which ends early, with labels at some places."""
    rng, batch = np.random.default_rng(0), {}
    for feature in task.lengths:
        tokens = rng.integers(4, V, (ROWS, LENGTH))
        segments = np.where(np.arange(LENGTH) < 5, 1, 2) * (np.arange(LENGTH) < 10)
        hidden = rng.random(tokens.shape) < 0.4 if feature == "labels" else True
        batch[feature] = np.where((segments > 0) & hidden, tokens, 0).astype(np.int32)
        batch[f"{feature}_segment_ids"] = np.tile(segments, (ROWS, 1)).astype(np.int32)
        positions = np.where(np.arange(LENGTH) < 5, 0, -5) + np.arange(LENGTH)
        batch[f"{feature}_positions"] = np.tile(positions, (ROWS, 1)).astype(np.int32)
    return batch


def lowered_gradient(task):
    """A program (params, batch, key) -> (gradient of the loss, sums)."""

    def loss(params, batch, key):
        loss, weight, sums = task.loss(params, batch, key)
        return loss, {"loss": loss, "weight": weight, **sums}

    params = jax.eval_shape(task.init, jax.random.key(0))
    return jax.jit(jax.grad(loss, has_aux=True)).lower(params, batch_of(task), jax.random.key(1))


@TASKS
def test_a_loss_in_tiles_is_the_loss(name):
    tasks, rng = [task_of(name, tiles) for tiles in (4, 1)], np.random.default_rng(1)
    shapes = jax.eval_shape(tasks[0].init, jax.random.key(0))
    params = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)
    args = params, batch_of(tasks[0]), jax.random.key(1)
    fast = {"xla_backend_optimization_level": 0}
    (found, sums), (expected, expected_sums) = (
        lowered_gradient(task).compile(fast)(*args) for task in tasks
    )
    assert sums["weight"] > 5
    assert jax.tree.map(float, sums) == pytest.approx(jax.tree.map(float, expected_sums), rel=1e-6)
    for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-5, atol=1e-6 * np.abs(other).max())


@TASKS
def test_a_loss_in_tiles_never_holds_all_logits(name):
    """Of the arrays with an axis of the vocabulary, the table is then the largest."""
    for tiles, holds_all in ((5, False), (1, True)):
        text = lowered_gradient(task_of(name, tiles)).as_text()
        shapes = [list(map(int, found.split("x"))) for found in re.findall(r"<([\dx]+)xf32>", text)]
        largest = max(math.prod(shape) for shape in shapes if V in shape)
        assert (largest > V * MODEL["d_model"]) == holds_all

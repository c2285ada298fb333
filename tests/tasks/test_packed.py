"""Tasks that predict tokens have the same loss, sums and gradients in tiles of the vocabulary."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.runs import build
from transformer_jax.runs.config import complete_config, read_settings

V, ROWS, LENGTH = 45, 3, 12
MODEL = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_layers": 1, "dtype": "float32"}
MODEL |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
ARCHITECTURES = {
    "translation": "encoder_decoder",
    "language_modeling": "decoder_only",
    "masked_lm": "encoder_only",
}
TASKS = pytest.mark.parametrize("name", ARCHITECTURES)


def task_of(name, tiles, vocab_multiple=1):
    given = {
        "task": {"name": name, "mask_rate": 0.5},
        "model": MODEL | {"architecture": ARCHITECTURES[name], "vocab_multiple": vocab_multiple},
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
    """A program (params, batch) -> (gradient of the loss, sums)."""

    def loss(params, batch):
        loss, weight, sums = task.loss(params, batch, None)
        return loss, {"loss": loss, "weight": weight, **sums}

    params = jax.eval_shape(task.init, jax.random.key(0))
    return jax.jit(jax.grad(loss, has_aux=True)).lower(params, batch_of(task))


def found_by(task, params):
    fast = {"xla_backend_optimization_level": 0}
    gradient, sums = lowered_gradient(task).compile(fast)(params, batch_of(task))
    assert sums["weight"] > 5
    return gradient, {name: float(value) for name, value in sums.items()}


def drawn_params(task):
    rng, shapes = np.random.default_rng(1), jax.eval_shape(task.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def plain():
    """`plain(name)`: parameters of a task, and their gradient and sums, of all logits at once."""

    @functools.cache
    def make(name):
        params = drawn_params(task_of(name, 1))
        return params, *found_by(task_of(name, 1), params)

    return make


@pytest.mark.parametrize(
    ("name", "tiles", "vocab_multiple"),
    [
        ("translation", 5, 32),
        ("language_modeling", 4, 1),
        ("language_modeling", 1, 32),
        ("masked_lm", 4, 32),
    ],
)
def test_neither_tiles_nor_padding_of_the_vocabulary_change_a_loss(
    name, tiles, vocab_multiple, plain
):
    """Whatever the padding holds; its gradient is zero."""
    params, expected, expected_sums = plain(name)
    task = task_of(name, tiles, vocab_multiple)
    shapes = jax.eval_shape(task.init, jax.random.key(0))

    def pad(leaf, shape, value=0.0):
        widths = [(0, more - size) for more, size in zip(shape.shape, leaf.shape, strict=True)]
        return np.pad(leaf, widths, constant_values=value)

    huge = functools.partial(pad, value=1e4)
    gradient, sums = found_by(task, jax.tree.map(huge, params, shapes))
    assert sums == pytest.approx(expected_sums, rel=1e-6)
    for path, leaf in jax.tree.leaves_with_path(jax.tree.map(pad, expected, shapes)):
        found = functools.reduce(lambda tree, key: tree[key.key], path, gradient)
        atol = 1e-6 * np.abs(leaf).max()
        np.testing.assert_allclose(found, leaf, rtol=1e-5, atol=atol, err_msg=str(path))
        assert not np.any(np.asarray(found)[np.asarray(leaf) == 0])


@pytest.mark.parametrize("name", ["translation", "language_modeling"])
def test_a_search_never_sees_padding_of_the_vocabulary(name):
    model, row = task_of(name, 1, vocab_multiple=32).model, jnp.ones((2, 3), jnp.int32)
    rows = (row, jnp.ones(2, jnp.int32))
    args = (*rows * (2 if name == "translation" else 1), 8)

    def logits(model):
        first, memory, state = model.prefill(*args)
        return first, model.decode_step(row[:, 0], memory, state)[0]

    both = jax.eval_shape(
        lambda key: model.init_with_output(key, method=logits)[0], jax.random.key(0)
    )
    assert [each.shape for each in both] == [(2, V)] * 2


@TASKS
def test_a_loss_in_tiles_never_holds_all_logits(name):
    """Of the arrays with an axis of the vocabulary, the table is then the largest."""
    for tiles, holds_all in ((5, False), (1, True)):
        text = lowered_gradient(task_of(name, tiles)).as_text()
        shapes = [list(map(int, found.split("x"))) for found in re.findall(r"<([\dx]+)xf32>", text)]
        largest = max(math.prod(shape) for shape in shapes if V in shape)
        assert (largest > V * MODEL["d_model"]) == holds_all

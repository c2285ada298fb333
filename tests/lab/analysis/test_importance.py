# SPDX-License-Identifier: Apache-2.0
"""The importance of heads against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lab.analysis.drawn import draw
from transformer_jax.lab.analysis.importance import by_gradient, by_switching_off
from transformer_jax.losses import token_losses
from transformer_jax.models import apply_model
from transformer_jax.models.patches import patched_model

HEADS = {f"decoder.layer_{i}.self_attention.heads": 2 for i in range(2)}
RNG = np.random.default_rng(0)


def batch(rows):
    tokens = RNG.integers(4, 11, (rows, 6))
    positions = np.broadcast_to(np.arange(6), tokens.shape)
    return {"tokens": tokens, "positions": positions, "segments": (positions < 5).astype(int)}


BATCHES = [batch(3), batch(3)]


@pytest.fixture(scope="module")
def drawn(random_params):
    return draw(random_params, "decoder_only")


def losses_of(model, params, batch):
    """Loss of each token, and whether it counts."""
    inputs = (batch["tokens"], batch["positions"], batch["segments"])
    found = token_losses(apply_model(model, params, *inputs), jnp.roll(batch["tokens"], -1, axis=1))
    return found.losses, (batch["segments"] > 0).astype(np.float32)


def loss_of(model):
    def loss(params, batch):
        losses, counts = losses_of(model, params, batch)
        return (losses * counts).sum(), counts.sum()

    return loss


@pytest.fixture(scope="module")
def row_losses(drawn):
    """`row_losses({head: scale})`: the loss of each example with these outputs of heads scaled."""
    whole = {f"{place}[{head}]": 1.0 for place, count in HEADS.items() for head in range(count)}

    @jax.jit
    def losses_of_scaled(scales):
        model = patched_model(drawn.model, scales, drawn.hook_points)
        found = [losses_of(model, drawn.params, batch) for batch in BATCHES]
        return jnp.concatenate([(losses * counts).sum(axis=1) for losses, counts in found])

    return lambda scales: np.asarray(losses_of_scaled(whole | scales))


def test_by_gradient_it_is_the_mean_slope_of_each_examples_loss(drawn, row_losses):
    found = by_gradient(loss_of(drawn.model), drawn.params, BATCHES, HEADS)
    place, step = "decoder.layer_1.self_attention.heads", 1e-2
    for head in range(2):
        more, less = (row_losses({f"{place}[{head}]": scale}) for scale in (1 + step, 1 - step))
        slopes = np.abs(more - less) / (2 * step)
        assert found[place][head] == pytest.approx(slopes.sum() / 30, rel=2e-2)
    assert [len(of_place) for of_place in found.values()] == [2, 2]


def test_by_switching_off_it_is_the_increase_of_the_loss(drawn, row_losses):
    found = by_switching_off(loss_of(drawn.model), drawn.params, BATCHES, HEADS)
    whole = row_losses({}).sum() / 30
    for place in HEADS:
        for head in range(2):
            without = row_losses({f"{place}[{head}]": 0.0}).sum() / 30
            assert found[place][head] == pytest.approx(without - whole, abs=1e-5)

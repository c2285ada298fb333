# SPDX-License-Identifier: Apache-2.0
"""Rows whose tokens eight devices divide: attention around a ring, models and runs."""

from functools import partial

import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from transformer_jax.models.config import ModelConfig
from transformer_jax.nn import ring_attention
from transformer_jax.nn.experts import ExpertsOptions
from transformer_jax.nn.transformer import undivided_reason
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import DEFAULTS


@pytest.fixture(scope="module")
def divided(eight_devices):
    return eight_devices["divided_tokens"]


@pytest.mark.parametrize("keys", ["ring", "gathered"])
def test_outputs_and_gradients_equal_those_of_plain_attention(divided, keys):
    """With biases, a cap, a window (gathered) and sentences packed into rows. Only blocks with keys
    for a query are computed."""
    results = divided[keys]
    assert results["apart"] < 2e-6
    assert results["across"] == 0.0  # no gradient crosses a sentence
    assert results["blocks"] == results["blocks with keys"] < results["all blocks"]


@pytest.mark.parametrize(
    "model, layout",
    [
        ("language_modeling", "sequence 2 x fsdp 2 x tensor 2"),
        ("translation", "sequence 4 x data 2"),
    ],
)
def test_loss_and_gradient_equal_those_of_one_device(divided, model, layout):
    """The language model has two periods of scanned, rematerialized layers, a teacher and
    micro-batches."""
    apart = divided[model][layout]
    assert apart["loss"] < 1e-5 and apart["gradient"] < 1e-5


def test_each_token_gets_bits_of_its_own_from_the_hardware(divided):
    distinct, tokens = divided["hardware bits"]
    assert distinct == tokens


def test_evaluations_divide_tokens(divided):
    one, found = divided["evaluated"].values()
    assert found["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert (one["layers"], found["layers"]) == (0, 1)


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"positions": "relative"}, "positions 'relative' look up content by distance"),
        ({"positions": "deberta"}, "positions 'deberta' look up content by distance"),
        ({"attention_dropout_rate": 0.1}, "set attention_dropout_rate to 0"),
        ({"positions": "alibi"}, None),
        ({"positions": "t5"}, None),
        ({"positions": "rotary", "attention_window": 4}, None),
    ],
)
def test_attention_that_cannot_be_divided_says_why(options, reason):
    found = ring_attention.unsupported_reason(ModelConfig(**options))
    assert found is None if reason is None else reason in found


def dividing(changes):
    """Checks a config whose tokens four devices divide."""
    settings = read_settings(tj.config("quickstart", changes | {"parallel.sequence": 4}))
    return partial(build.check_divided_tokens, settings, build.build_untokenized_task(settings))


def test_models_whose_tokens_cannot_be_divided_are_refused():
    recurrent = {f"model.{name}": DEFAULTS[f"model.{name}"] for name in ("d_ff", "num_heads")}
    recurrent |= {"model.architecture": "recurrent", "model.dropout_rate": 0.1}
    odd = dividing({"data.max_source_length": 20})
    assert_refused(
        {
            "rows of 20 tokens (source)": odd,
            "a multiple of 8, such as 24": odd,
            "positions 'relative'": dividing({"model.positions": "relative"}),
            "'recurrent' reads one token after another": dividing(recurrent),
        }
    )


def test_experts_of_bounded_capacity_are_refused():
    """The order of the tokens decides which choices are dropped, and devices have another order."""
    for capacity, reason in ((1.25, "earlier tokens come first"), (None, None)):
        options = (ExpertsOptions(capacity_factor=capacity),)
        found = undivided_reason(ModelConfig(feed_forward="experts", options=options))
        assert found is None if reason is None else reason in found

# SPDX-License-Identifier: Apache-2.0
"""Rows whose tokens eight devices divide: attention around a ring, models and runs."""

import pytest

import transformer_jax as tj
from transformer_jax.models.config import ModelConfig
from transformer_jax.nn import ring_attention
from transformer_jax.nn.experts import ExpertsOptions
from transformer_jax.nn.layers import undivided_reason
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import DEFAULTS


@pytest.fixture(scope="module")
def divided(eight_devices):
    """Results of `tests/parallel/divided_tokens.py`."""
    return eight_devices["divided_tokens"]


@pytest.mark.parametrize("keys", ["ring", "gathered"])
def test_outputs_and_gradients_equal_those_of_plain_attention(divided, keys):
    """With biases, a cap, a window (gathered) and sentences packed into rows."""
    assert divided[keys]["apart"] < 2e-6


@pytest.mark.parametrize("keys", ["ring", "gathered"])
def test_no_gradient_crosses_a_sentence(divided, keys):
    assert divided[keys]["across"] == 0.0


@pytest.mark.parametrize("keys", ["ring", "gathered"])
def test_only_blocks_with_keys_for_a_query_are_computed(divided, keys):
    found = divided[keys]
    assert found["blocks"] == found["blocks with keys"] < found["all blocks"]


@pytest.mark.parametrize(
    "model, layout",
    [
        ("language_modeling", "sequence 4 x data 2"),  # scanned, rematerialized, accumulated
        ("translation", "sequence 2 x fsdp 2 x tensor 2"),  # accumulated
    ],
)
def test_loss_and_gradient_equal_those_of_one_device(divided, model, layout):
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


def refused(changes):
    """Message of a config that the devices of `parallel.sequence` cannot divide."""
    settings = read_settings(tj.config("quickstart", changes | {"parallel.sequence": 4}))
    task = build.build_untokenized_task(settings)
    with pytest.raises(tj.UserError) as error:
        build.check_divided_tokens(settings, task)
    return str(error.value)


def test_a_length_that_does_not_divide_names_one_that_does():
    message = refused({"data.max_source_length": 20})
    assert "rows of 20 tokens (source)" in message and "a multiple of 8, such as 24" in message


def test_models_whose_tokens_cannot_be_divided_are_refused():
    assert "positions 'relative'" in refused({"model.positions": "relative"})
    recurrent = {f"model.{name}": DEFAULTS[f"model.{name}"] for name in ("d_ff", "num_heads")}
    recurrent |= {"model.architecture": "recurrent", "model.dropout_rate": 0.1}
    assert "architecture 'recurrent' reads one token after another" in refused(recurrent)


def test_experts_of_bounded_capacity_are_refused():
    """The order of the tokens decides which choices are dropped, and devices have another order."""
    for capacity, reason in ((1.25, "earlier tokens come first"), (None, None)):
        options = (ExpertsOptions(capacity_factor=capacity),)
        found = undivided_reason(ModelConfig(feed_forward="experts", options=options))
        assert found is None if reason is None else reason in found

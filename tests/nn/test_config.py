"""Sizes that follow from others, and the line for each impossible one."""

import pytest

from transformer_jax.nn.config import TransformerConfig


def test_head_sizes_follow_from_d_model_unless_given():
    assert (TransformerConfig().d_k, TransformerConfig().d_v) == (64, 64)
    config = TransformerConfig(d_model=512, num_heads=16, key_size=5, value_size=7)
    assert (config.d_k, config.d_v) == (5, 7)
    assert TransformerConfig(num_heads=16, key_size=5).d_v == 32


def test_heads_need_not_divide_d_model_where_both_sizes_are_given():
    config = TransformerConfig(d_model=10, num_heads=3, key_size=4, value_size=2)
    assert (config.d_k, config.d_v) == (4, 2)


@pytest.mark.parametrize(
    ("given", "missing"),
    [({}, "key_size"), ({"key_size": 4}, "value_size"), ({"value_size": 4}, "key_size")],
)
def test_heads_that_do_not_divide_d_model(given, missing):
    message = f"num_heads 3 does not divide d_model 10; choose sizes that divide or set {missing}"
    with pytest.raises(ValueError, match=message):
        TransformerConfig(d_model=10, num_heads=3, **given)


@pytest.mark.parametrize(
    "name",
    ["d_model", "d_ff", "num_heads", "num_encoder_layers", "num_decoder_layers", "max_length"]
    + ["key_size", "value_size", "num_key_value_heads", "attention_window", "max_distance"],
)
def test_sizes_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        TransformerConfig(**{name: 0})


@pytest.mark.parametrize(
    "name", ["dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"]
)
@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_rates_lie_below_one(name, rate):
    with pytest.raises(ValueError, match=rf"{name} is {rate}; it must lie in \[0, 1\)"):
        TransformerConfig(**{name: rate})


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("attention_bias", "none, output, all"),
        ("norm_placement", "post, pre, sandwich"),
        ("tie_embeddings", "all, target, none"),
        ("dtype", "auto, float32, bfloat16"),
    ],
)
def test_choices_are_listed(name, choices):
    with pytest.raises(ValueError, match=f"{name} is 'both', not one of {choices}"):
        TransformerConfig(**{name: "both"})


@pytest.mark.parametrize("name", ["num_encoder_layers", "num_decoder_layers", "num_layers"])
def test_layers_beyond_counting_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 99999999999; at most 1000 are built"):
        TransformerConfig(**{name: 99_999_999_999})


def test_heads_share_keys_only_in_groups_of_one_size():
    assert TransformerConfig(num_heads=8).key_value_heads == 8
    assert TransformerConfig(num_heads=8, num_key_value_heads=2).key_value_heads == 2
    with pytest.raises(ValueError, match="num_key_value_heads 3 does not divide num_heads 8"):
        TransformerConfig(num_heads=8, num_key_value_heads=3)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_logit_cap_is_positive(cap):
    with pytest.raises(ValueError, match=f"logit_cap is {cap}; it must be positive, or None"):
        TransformerConfig(logit_cap=cap)

# SPDX-License-Identifier: Apache-2.0
"""Derived sizes, and the error message for each impossible config."""

import pytest

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.runtime import platform


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
    ("name", "choices"),
    [
        ("attention_bias", "none, qkv, output, all"),
        ("norm_placement", "post, pre, sandwich"),
        ("tie_embeddings", "all, inputs, target, none"),
        ("dtype", "auto, float32, bfloat16"),
    ],
)
def test_choices_are_listed(name, choices):
    with pytest.raises(ValueError, match=f"{name} is 'both', not one of {choices}"):
        TransformerConfig(**{name: "both"})


def test_heads_share_keys_only_in_groups_of_one_size():
    assert TransformerConfig(num_heads=8).key_value_heads == 8
    assert TransformerConfig(num_heads=8, num_key_value_heads=2).key_value_heads == 2
    with pytest.raises(ValueError, match="num_key_value_heads 3 does not divide num_heads 8"):
        TransformerConfig(num_heads=8, num_key_value_heads=3)


def test_a_config_uses_no_device(monkeypatch):
    """A process that joins a job reads its config before JAX may use any device."""
    monkeypatch.setattr(platform, "target", lambda: pytest.fail("a device was asked for"))
    assert TransformerConfig(dtype="auto").dtype == "auto"

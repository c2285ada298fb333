# SPDX-License-Identifier: Apache-2.0
"""Derived sizes, and the error message for each impossible config."""

import pytest

from tests.refusals import assert_refused
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.runtime import platform


def test_head_sizes_follow_from_d_model_unless_given():
    assert (TransformerConfig().d_k, TransformerConfig().d_v) == (64, 64)
    config = TransformerConfig(d_model=512, num_heads=16, key_size=5, value_size=7)
    assert (config.d_k, config.d_v) == (5, 7)
    assert TransformerConfig(num_heads=16, key_size=5).d_v == 32
    assert TransformerConfig(num_heads=8).key_value_heads == 8
    assert TransformerConfig(num_heads=8, num_key_value_heads=2).key_value_heads == 2


def test_impossible_configs_are_refused():
    def config(**fields):
        return lambda: TransformerConfig(**fields)

    heads = {"d_model": 10, "num_heads": 3}
    windows = {"attention_window": 8, "encoder_window": 9}
    divide = "num_heads 3 does not divide d_model 10; choose sizes that divide or set"
    assert_refused(
        {
            f"{divide} key_size": config(**heads, value_size=4),
            f"{divide} value_size": config(**heads, key_size=4),
            "num_key_value_heads 3 does not divide": config(num_heads=8, num_key_value_heads=3),
            "dtype is 'both', not one of auto, float32, bfloat16": config(dtype="both"),
            "encoder_window replaces model.attention_window": config(encoder_window=9),
            "which no layer has": config(
                **windows, layers="attention_window=4 | attention_window=none"
            ),
        }
    )
    assert config(**heads, key_size=4, value_size=2)().d_v == 2
    config(**windows, layers="default | attention_window=none")()


def test_a_config_uses_no_device(monkeypatch):
    """A process that joins a job reads its config before JAX may use any device."""
    monkeypatch.setattr(platform, "target", lambda: pytest.fail("a device was asked for"))
    assert TransformerConfig(dtype="auto").dtype == "auto"

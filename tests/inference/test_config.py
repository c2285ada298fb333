# SPDX-License-Identifier: Apache-2.0
"""The section `decode` of a config."""

import pytest

from transformer_jax.inference.config import DecodeConfig


def test_defaults_are_those_of_the_paper():
    config = DecodeConfig()
    assert (config.beam_size, config.alpha, config.max_extra_length) == (4, 0.6, 50)


@pytest.mark.parametrize(
    "setting",
    [{"beam_size": 0}, {"alpha": -0.1}, {"alpha": float("nan")}, {"max_extra_length": -1}]
    + [{"batch_size": 0}, {"num_outputs": 0}, {"repetition_penalty": 0.0}],
)
def test_settings_out_of_range_are_named(setting):
    (name,) = setting
    with pytest.raises(ValueError, match=name):
        DecodeConfig(**setting)

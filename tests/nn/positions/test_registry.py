# SPDX-License-Identifier: Apache-2.0
"""Position encodings by name, and their numbers of positions."""

import dataclasses

from tests.refusals import assert_refused
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import POSITIONS, check_num_positions, encoding_class

CONFIG = TransformerConfig(d_model=16, num_heads=4, max_length=9)


def test_only_learned_positions_are_limited():
    for name in POSITIONS:
        reach = 9 if name == "learned" else 10_000
        check_num_positions(dataclasses.replace(CONFIG, positions=name), reach)
    learned = dataclasses.replace(CONFIG, positions="learned")
    unknown = dataclasses.replace(CONFIG, positions="round")
    assert_refused(
        {
            "reach to max_length 9, sequences to 10": lambda: check_num_positions(learned, 10),
            "'round', not one of none, sinusoidal": lambda: encoding_class(unknown),
        }
    )

# SPDX-License-Identifier: Apache-2.0
"""Absolute positions: literal sinusoids, learned vectors, none; encodings by name."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import apply
from tests.refusals import assert_refused
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import POSITIONS, check_num_positions, encoding_class
from transformer_jax.nn.positions.absolute import sinusoids

CONFIG = TransformerConfig(d_model=16, num_heads=4, max_length=9)
PACKED = np.array([[0, 1, 2, 0, 1, 0]])


def embed(name, x, positions, random_params, **changes):
    encoding = POSITIONS[name](dataclasses.replace(CONFIG, **changes))
    variables = random_params(encoding, x, positions, method="embed")
    return apply(encoding, variables, x, positions, method="embed"), variables


@pytest.mark.parametrize("d_model", [1, 7, 512])
def test_the_papers_formula(d_model):
    positions = [0, 3, 100]
    expected = np.zeros((3, d_model))
    for row, position in enumerate(positions):
        for i in range(d_model):
            angle = position / 10_000 ** (2 * (i // 2) / d_model)
            expected[row, i] = math.sin(angle) if i % 2 == 0 else math.cos(angle)
    np.testing.assert_allclose(sinusoids(jnp.array(positions), d_model), expected, atol=2e-5)


@pytest.mark.parametrize("d_model", [1, 7, 16])
def test_all_sines_can_come_first(random_params, d_model):
    """Junczys-Dowmunt et al. (2018); an odd width has one more sine than cosines."""
    places = np.array([[0, 3, 100]])
    x = np.random.default_rng(1).normal(size=(1, 3, d_model)).astype(np.float32)
    sizes = {"d_model": d_model, "key_size": 1, "value_size": 1}
    y, variables = embed("sinusoidal_halves", x, places, random_params, **sizes)
    assert not variables
    for t, i in np.ndindex(3, (d_model + 1) // 2):
        angle = places[0, t] / 10_000 ** (2 * i / d_model)
        assert y[0, t, i] - x[0, t, i] == pytest.approx(math.sin(angle), abs=2e-5)
        if (d_model + 1) // 2 + i < d_model:
            cosine = (0, t, (d_model + 1) // 2 + i)
            assert y[cosine] - x[cosine] == pytest.approx(math.cos(angle), abs=2e-5)


@pytest.mark.parametrize("offset", [0, 2])
def test_learned_positions_are_rows_of_a_table(random_params, offset):
    x = np.random.default_rng(1).normal(size=(1, 6, 16)).astype(np.float32)
    y, variables = embed("learned", x, PACKED, random_params, position_offset=offset)
    table = variables["params"]["table"]
    assert table.shape == (9 + offset, 16)
    np.testing.assert_allclose(y, x + table[PACKED + offset], atol=1e-6)


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

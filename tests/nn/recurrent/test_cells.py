# SPDX-License-Identifier: Apache-2.0
"""Each cell equals its paper's equations."""

import jax
import numpy as np
import pytest

from tests.compiled import apply, run
from tests.nn.recurrent import recurrent_oracle as oracle
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.recurrent.cells import CELLS

CONFIG = TransformerConfig(dtype="float32")
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", CELLS)
def test_a_step_equals_the_papers_equations(random_params, name):
    cell = CELLS[name](CONFIG, inputs=5, size=4, feedback_size=3)
    x, feedback = (RNG.normal(size=size).astype(np.float32) for size in ((2, 1, 5), (2, 3)))
    step, vectors = oracle.CELLS[name]
    state = tuple(RNG.normal(size=(2, 4)).astype(np.float32) for _ in range(vectors))

    def one_step(cell, state):
        return cell.step(state, cell.project(x)[:, 0], feedback)

    drawn = random_params(cell, state, method=one_step)
    found = apply(cell, drawn, state, method=one_step)
    params = jax.tree.map(np.asarray, drawn["params"])
    for row in range(2):
        wanted = step(params, x[row, 0], tuple(part[row] for part in state), feedback[row])
        for part, expected in zip(found, wanted, strict=True):
            np.testing.assert_allclose(part[row], expected, rtol=1e-5, atol=1e-6)


def test_the_forget_gate_of_an_initial_lstm_is_open():
    cell = CELLS["lstm"](CONFIG, inputs=2, size=3)
    fresh = run(cell.init, jax.random.key(0), np.zeros((1, 1, 2)), method="project")["params"]
    assert fresh["gate_biases"].sum(axis=1).tolist() == [0, 3, 0, 0]

# SPDX-License-Identifier: Apache-2.0
"""Each oracle of the forward pass finds its fault, and nothing in a right model."""

import pytest

from transformer_jax.lab.verification import forward_oracles as oracles

WRONG = [
    (oracles.packed, "activation", "token_shift", "example 2"),
    (oracles.packed, "activation", "leaking_gradient", "the gradient of row"),
    (oracles.cached, "positions", "from_first", "decoded token 1"),
    (oracles.cached, "positions", "wraps", "decoded token 1, row 1 (prompt of 24)"),
    (oracles.cached, "attention_layer", "never_forgets", "token after a rewind, row 1"),
    (oracles.exact, "activation", "rounded", "row"),
    (oracles.exact, "activation", "wrong_rule", "most in decoder/layer_0"),
    (oracles.causal, "activation", "row_mean", "logits of token 0, by token 1 after it"),
    (oracles.bfloat16, "activation", "offset", "row"),
    (oracles.bfloat16, "activation", "half", "row"),
]


@pytest.mark.parametrize(("oracle", "field", "name", "where"), WRONG)
def test_finds_the_fault(subject_of, right, oracle, field, name, where):
    # Other positions have other parameters.
    found = oracle(subject_of({f"model.{field}": name}, None if field == "positions" else right))
    assert not found.is_equal and found.relative > 5 * found.tolerance
    assert where in found.where


@pytest.mark.parametrize(
    "oracle", [oracles.packed, oracles.cached, oracles.causal, oracles.exact, oracles.bfloat16]
)
def test_a_right_model_passes(right, oracle):
    assert oracle(right).is_equal


def test_a_fault_of_another_kind_is_not_blamed(subject_of, right):
    assert oracles.packed(subject_of({"model.positions": "from_first"})).is_equal
    assert oracles.causal(subject_of({"model.activation": "token_shift"}, right)).is_equal
    assert oracles.exact(subject_of({"model.activation": "straight_through"}, right)).is_equal

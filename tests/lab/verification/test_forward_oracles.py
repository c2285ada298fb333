# SPDX-License-Identifier: Apache-2.0
"""Each oracle of the forward pass finds its fault, and nothing in a right model."""

import pytest

from transformer_jax.lab.verification.forward_oracles import (
    bfloat16,
    cached,
    causal,
    exact,
    packed,
)

WRONG = [
    (packed, "activation", "token_shift", "example 2"),
    (packed, "activation", "leaking_gradient", "the gradient of row"),
    (cached, "positions", "from_first", "decoded token 1"),
    (cached, "positions", "wraps", "decoded token 1, row 1 (prompt of 24)"),
    (cached, "attention_layer", "never_forgets", "token after a rewind, row 1"),
    (exact, "activation", "rounded", "row"),
    (exact, "activation", "wrong_rule", "most in decoder/layer_0"),
    (causal, "activation", "row_mean", "logits of token 0, by token 1 after it"),
    (bfloat16, "activation", "offset", "row"),
    (bfloat16, "activation", "half", "row"),
]


@pytest.mark.parametrize(("oracle", "field", "name", "where"), WRONG)
def test_finds_the_fault(subject_of, right, oracle, field, name, where):
    # Other positions have other parameters.
    found = oracle(subject_of({f"model.{field}": name}, None if field == "positions" else right))
    assert not found.is_equal and found.relative > 5 * found.tolerance
    assert where in found.where


@pytest.mark.parametrize("oracle", [packed, cached, causal, exact, bfloat16])
def test_a_right_model_passes(right, oracle):
    assert oracle(right).is_equal


def test_a_fault_of_another_kind_is_not_blamed(subject_of, right):
    assert packed(subject_of({"model.positions": "from_first"})).is_equal
    assert causal(subject_of({"model.activation": "token_shift"}, right)).is_equal
    assert exact(subject_of({"model.activation": "straight_through"}, right)).is_equal

# SPDX-License-Identifier: Apache-2.0
"""Inspection of the models of all tasks."""

import jax
import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.models import apply_model

LINE = "the old [MASK] sees"


@pytest.mark.parametrize(
    ("name", "stack"),
    [
        ("language_modeling", "decoder"),
        ("masked_lm", "encoder"),
        ("classification", "encoder"),
        ("tagging", "encoder"),
    ],
)
def test_attention_is_labeled_with_the_tokens_of_the_line(run_of, name, stack):
    run = run_of(name)
    found, reading = run.attention(LINE), run.model_inputs(LINE)
    tokenizer = run.tokenizer.text("text")
    assert found.kinds == [stack] and found.texts == {"text": LINE}
    assert found.tokens[stack] == tokenizer.pieces(reading.tokens[stack])
    assert tokenizer.decode(reading.tokens[stack]).startswith("the old")
    length = len(found.tokens[stack])
    weights = found.weights(stack)
    assert weights.shape == (1, 2, length, length)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-5)
    assert bool(np.triu(weights[0, 0], 1).any()) == (stack == "encoder")


def test_the_lens_of_a_masked_model_ends_in_its_prediction(run_of):
    run = run_of("masked_lm")
    found, reading = run.hidden(LINE), run.model_inputs(LINE)
    logits = apply_model(run.model, run.params, *reading.inputs)[0, : found.lens.shape[1]]
    np.testing.assert_allclose(found.lens[-1], jax.nn.log_softmax(logits), atol=1e-5)


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_a_walk_ends_in_labels(run_of, name):
    run = run_of(name)
    steps = run.walk("the old dog").steps
    tables = [step for step in steps if step.axes and set(step.axes[0].labels) == {"A", "B"}]
    assert steps[0].kind == "tokens" and tables
    for table in tables:
        assert table.values[:, -1].sum() == pytest.approx(1, abs=1e-5)
    if name == "classification":
        ((likeliest,),) = run.n_best(["the old dog"])
        assert tables[-1].axes[0].labels[0] == likeliest.text
        assert tables[-1].values[0, -1] == pytest.approx(likeliest.score, abs=1e-5)


def test_the_inputs_of_a_pair(run_of):
    run = run_of("classification")
    pair = run.model_inputs("the old\tdog")
    separator = run.tokenizer.specials("text").encoder.between[0]
    assert list(pair.tokens["encoder"]).count(separator) == 2
    with pytest.raises(tj.UserError, match="reads a text alone; give no target"):
        run.attention("the old", "dog")

# SPDX-License-Identifier: Apache-2.0
"""Checks name the mistakes of readers' functions, and none of right ones."""

import time

import numpy as np
import optax
import pytest

import transformer_jax as tj
from tests.lab.mistakes import functions
from tests.lab.mistakes.functions import RIGHT, WRONG
from tests.refusals import assert_refused
from transformer_jax.lab.mistakes.engine import MISTAKES

PLANTED = [(check, name) for check, rows in WRONG.items() for name in rows]


def names(answer):
    return [finding.name for finding in answer.mistakes]


@pytest.mark.parametrize(("check", "name"), PLANTED, ids=[name for _, name in PLANTED])
def test_a_planted_mistake_is_named(check, name):
    answer = getattr(tj, check)(WRONG[check][name])
    assert not answer.right
    assert names(answer) == [name]
    assert MISTAKES[name].change in repr(answer) and answer.mistakes[0].evidence in repr(answer)


@pytest.mark.parametrize("check", RIGHT)
def test_right_functions_are_right_in_any_layout(check):
    for function in RIGHT[check]:
        answer = getattr(tj, check)(function)
        assert answer.right and not answer.mistakes, answer


def test_two_mistakes_at_once_are_both_named():
    answer = tj.check_attention(lambda q, k, v: functions.attention(q, k, v, factor=1, axis=-2))
    assert sorted(names(answer)) == ["scale_missing", "softmax_axis"]


def test_a_second_call_that_differs_is_dropout():
    dropped = lambda q, k, v: functions.dropout(functions.attention(q, k, v), 0.1, True)  # noqa: E731
    assert names(tj.check_attention(dropped)) == ["dropout_at_evaluation"]


def test_an_unknown_mistake_has_no_name():
    answer = tj.check_attention(lambda q, k, v: functions.attention(q, k, v) ** 2)
    assert not answer.right and not answer.mistakes and "no known mistake" in repr(answer)
    assert not tj.check_positions(lambda x: x).mistakes
    assert not tj.check_mask(np.eye, mask="keep").mistakes


def test_rows_that_see_no_key_are_a_mistake():
    hidden = lambda tokens: np.where(tokens[:, :, None] & tokens[:, None], 0, -np.inf)  # noqa: E731
    for answer in (tj.check_attention(functions.no_rows), tj.check_mask(hidden)):
        assert names(answer) == ["nan_rows"], answer
    assert "of 120 outputs are NaN" in repr(tj.check_attention(functions.no_rows))


def test_a_docstring_tells_the_axes_of_a_mask():
    def attention(x, wq, wk, wv, wo, num_heads, mask):
        """mask: [batch, queries, keys], True where a key is seen."""
        return functions.multi_head(x, wq, wk, wv, wo, num_heads, mask=mask)

    for function in (attention, functions.mask_without_heads):
        answer = tj.check_attention(function, mask="keep")
        assert names(answer) == ["mask_heads_axis"]
        assert "with [2, 5, 5] for 3 heads it raises ValueError" in answer.mistakes[0].evidence


def test_what_a_mask_means_is_told():
    reversed_ = functions.mask_reversed
    assert tj.check_attention(reversed_, mask="hide").right
    assert names(tj.check_attention(reversed_, mask="keep"))[0] == "mask_inverted"
    upper = lambda n: np.triu(np.ones((n, n)), 1)  # noqa: E731
    assert tj.check_mask(upper, mask="hide").right
    assert names(tj.check_mask(upper, mask="keep"))[0] == "mask_reversed"


def test_what_is_inside_a_function_is_told():
    cosine = optax.warmup_cosine_decay_schedule(0.0, 0.3, 10, 50, end_value=0.0)
    assert tj.check_schedule(cosine, warmup=10, peak=0.3, total=50).right
    rates = WRONG["check_schedule"]["step_0"]
    counted = lambda step: [rates(n, 64, 8) for n in range(step + 1)][-1]  # noqa: E731
    assert names(tj.check_schedule(counted, warmup=8, d_model=64)) == ["step_0"]
    late = lambda step: 0.3 * (step + 1) / 10 if step <= 10 else cosine(step)  # noqa: E731
    assert names(tj.check_schedule(late, warmup=10, peak=0.3, total=50)) == ["warmup_off_by_one"]
    shifts = WRONG["check_loss"]["targets_not_shifted"]
    assert tj.check_loss(lambda logits, labels: shifts(logits, labels), shifted=True).right
    rolled = lambda tokens: functions.model(np.roll(tokens, 1, 1))  # noqa: E731
    assert names(tj.check_model(functions.model, cached=rolled)) == ["cache_differs"]


def in_place(q, k, v):
    q *= 0.5
    return functions.attention(q, k, v)


def raises(q, k, v):
    raise RuntimeError("Found no NVIDIA driver")


def shifting(logits, labels):
    return functions.token_losses(logits[:, :-1], labels[:, 1:]).mean()


def test_what_cannot_be_checked_is_one_line():
    assert_refused(
        {
            "RuntimeError: Found no NVIDIA driver": lambda: tj.check_attention(raises),
            "changes its argument `q` in place": lambda: tj.check_attention(in_place),
            "did not return within 0.1 s": lambda: tj.check_attention(
                lambda q, k, v: time.sleep(2), seconds=0.1
            ),
            "it returns the shape [1]": lambda: tj.check_attention(lambda q, k, v: np.ones(1)),
            "it returns nothing": lambda: tj.check_attention(lambda q, k, v: None),
            "a check takes a function, and type": lambda: tj.check_attention(np.ndarray),
            "it returns str, no array": lambda: tj.check_loss(lambda logits, labels: "0.5"),
            "has no parameters": lambda: tj.check_mask(lambda: 1),
            "what is the parameter `e`": lambda: tj.check_mask(lambda a, b, c, d, e: a),
            'mask="hide" if yes': lambda: tj.check_attention(functions.mask_reversed),
            "does True or 1 in its mask mean": lambda: tj.check_mask(lambda n: np.tri(n, k=-1)),
            "no number": lambda: tj.check_schedule(lambda step: [1.0] * 2, warmup=3, peak=0.1),
            "say warmup=": lambda: tj.check_schedule(lambda step: 1.0),
            "Say shifted=False": lambda: tj.check_loss(shifting),
            "Say part=": lambda: tj.check_model(lambda x: x),
            "give (inputs, targets)": lambda: tj.check_training(lambda tokens: tokens),
            "a check takes a function": lambda: tj.check_search(3),
        }
    )

# SPDX-License-Identifier: Apache-2.0
"""Learning rates at given steps. Schedules count steps from 0, the paper from 1."""

from functools import partial

import pytest

from transformer_jax.training import schedules

PAPER = partial(schedules.transformer, 64, 100)
# Equation 3: 512^-0.5 * 4000^-1.5 at first, then the peak of the base model and its end.
BASE = {1: 1.746928e-7, 2000: 3.493856e-4, 4000: 6.987712e-4, 16_000: 3.493856e-4}
BASE |= {100_000: 1.397542e-4}
WARM = {1: 1e-5, 50: 5e-4, 100: 1e-3}


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (schedules.inverse_sqrt(1e-3, 100), WARM | {400: 5e-4, 10_000: 1e-4}),
        (schedules.constant(1e-3, 100), WARM | {400: 1e-3, 10_000: 1e-3}),
        (
            schedules.cosine(1e-3, warmup_steps=10, decay_steps=110),
            {1: 1e-4, 5: 5e-4, 10: 1e-3, 35: 8.535534e-4, 60: 5e-4, 110: 0, 500: 0},
        ),
        (
            schedules.linear(1e-3, warmup_steps=10, decay_steps=110),
            {1: 1e-4, 5: 5e-4, 10: 1e-3, 35: 7.5e-4, 60: 5e-4, 110: 0, 500: 0},
        ),
        (
            schedules.wsd(1e-3, 10, 110, cooldown_steps=20, final_ratio=0.2),
            {1: 1e-4, 10: 1e-3, 60: 1e-3, 90: 1e-3, 100: 6e-4, 105: 4e-4, 110: 2e-4, 10_001: 2e-4},
        ),
        (schedules.transformer(512, 4000), BASE),
        (schedules.transformer(1024, 4000), {300_000: 5.705444e-5}),  # the end of the big model
        (PAPER(learning_rate=2), {n: 2 * float(PAPER()(n - 1)) for n in (1, 100, 1001)}),
    ],
    ids=["inverse_sqrt", "constant", "cosine", "linear", "wsd", "base", "big", "factor"],
)
def test_rates(schedule, rates):
    found = {update: float(schedule(update - 1)) for update in rates}
    assert found == pytest.approx(rates, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("make", [schedules.linear, schedules.cosine])
def test_a_decay_ends_at_its_final_ratio(make):
    whole, floored = (make(1e-3, 10, 110, final_ratio) for final_ratio in (0.0, 0.1))
    for update in (1, 5, 10, 11, 35, 60, 109, 110, 500):
        expected = max(1e-4, 0.1 * 1e-3 + 0.9 * float(whole(update - 1)))
        if update <= 10:
            expected = 1e-4 * update
        assert float(floored(update - 1)) == pytest.approx(expected, rel=1e-5)


def test_before_the_cooldown_rates_do_not_depend_on_the_length_of_the_run():
    short, long = (schedules.wsd(1e-3, 10, steps, 20) for steps in (100, 400))
    for count in range(80):
        assert float(short(count)) == float(long(count))

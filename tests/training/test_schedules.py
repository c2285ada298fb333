"""Learning rates at literal steps; a schedule counts from 0, the paper from 1."""

import jax
import numpy as np
import pytest

from transformer_jax.training import schedules


@pytest.mark.parametrize(
    ("d_model", "warmup_steps", "update", "rate"),
    [
        (512, 4000, 1, 1.746928e-7),  # 512^-0.5 * 4000^-1.5
        (512, 4000, 2000, 3.493856e-4),
        (512, 4000, 4000, 6.987712e-4),  # the peak of the base model
        (512, 4000, 16_000, 3.493856e-4),
        (512, 4000, 100_000, 1.397542e-4),  # its end
        (1024, 4000, 300_000, 5.705444e-5),  # the end of the big model
    ],
)
def test_equation_3(d_model, warmup_steps, update, rate):
    schedule = schedules.transformer(d_model, warmup_steps)
    assert float(schedule(update - 1)) == pytest.approx(rate, rel=1e-5)


def test_equation_3_times_a_factor():
    schedule, double = (schedules.transformer(64, 100, factor=factor) for factor in (1, 2))
    for count in (0, 99, 1000):
        assert float(double(count)) == pytest.approx(2 * float(schedule(count)))


@pytest.mark.parametrize(
    ("update", "rate"), [(1, 1e-5), (50, 5e-4), (100, 1e-3), (400, 5e-4), (10_000, 1e-4)]
)
def test_inverse_sqrt(update, rate):
    schedule = schedules.inverse_sqrt(1e-3, 100)
    assert float(schedule(update - 1)) == pytest.approx(rate, rel=1e-5)


@pytest.mark.parametrize(
    ("update", "rate"),
    [(1, 1e-4), (5, 5e-4), (10, 1e-3), (35, 8.535534e-4), (60, 5e-4), (110, 0), (500, 0)],
)
def test_cosine(update, rate):
    schedule = schedules.cosine(1e-3, warmup_steps=10, decay_steps=110)
    assert float(schedule(update - 1)) == pytest.approx(rate, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    ("update", "rate"), [(1, 1e-5), (50, 5e-4), (100, 1e-3), (400, 1e-3), (10_000, 1e-3)]
)
def test_constant(update, rate):
    schedule = schedules.constant(1e-3, 100)
    assert float(schedule(update - 1)) == pytest.approx(rate, rel=1e-5)


@pytest.mark.parametrize(
    ("update", "rate"),
    [(1, 1e-4), (5, 5e-4), (10, 1e-3), (35, 7.5e-4), (60, 5e-4), (110, 0), (500, 0)],
)
def test_linear(update, rate):
    schedule = schedules.linear(1e-3, warmup_steps=10, decay_steps=110)
    assert float(schedule(update - 1)) == pytest.approx(rate, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.transformer(64, 10),
        schedules.inverse_sqrt(1.0, 10),
        schedules.constant(1.0, 10),
        schedules.linear(1.0, 10, 90),
        schedules.cosine(1.0, 10, 90),
    ],
)
def test_steps_may_be_traced(schedule):
    counts = np.arange(0, 100, 7, dtype=np.int32)
    expected = [float(schedule(int(count))) for count in counts]
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(counts), expected, rtol=1e-5, atol=1e-9)

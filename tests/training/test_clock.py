"""Shares of time, by a clock that is turned by hand."""

import pytest

from transformer_jax.training import clock as clock_module
from transformer_jax.training.clock import Clock


@pytest.fixture
def turn(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(clock_module.time, "perf_counter", lambda: now[0])

    def turn(seconds):
        now[0] += seconds

    return turn


def test_what_it_is_not_told_of_is_steps(turn):
    clock = Clock()
    turn(3)
    clock.had("starting")
    turn(4)
    for _ in range(2):
        with clock.on("saving"):
            turn(0.5)
    with pytest.raises(ValueError), clock.on("evaluating"):
        turn(2)
        raise ValueError
    shares = clock.shares()
    assert shares == pytest.approx(
        {"goodput": 0.4, "share_starting": 0.3, "share_saving": 0.1, "share_evaluating": 0.2}
    )


def test_what_had_its_own_time_is_not_counted_twice(turn):
    clock = Clock()
    with clock.on("compiling"):
        turn(1)
    turn(2)
    clock.had("starting")
    turn(1)
    assert clock.shares()["share_starting"] == pytest.approx(0.5)
    assert clock.shares()["goodput"] == pytest.approx(0.25)

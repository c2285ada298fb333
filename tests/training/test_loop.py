# SPDX-License-Identifier: Apache-2.0
"""The training loop with fakes: order of events, metrics, shares of time, and patience."""

import contextlib
import math
import os
import signal
import threading
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

from transformer_jax.errors import Interrupted, Stopped, UserError
from transformer_jax.training import loop as loop_module
from transformer_jax.training.callbacks import Callback
from transformer_jax.training.loop import GoodputTimer, Intervals, Loop, Patience, SpikedError
from transformer_jax.training.profiling import Profiler


class State(NamedTuple):
    """A state whose parameters are the number of steps done."""

    params: int
    rate: None = None
    model_params = property(lambda state: state.params)
    saved = evaluated = property(lambda state: state)


class Parts:
    """Fakes of all that a loop uses; `events` records the order of their use.

    Step n has the loss n.
    """

    overlong, seen = 0, 0

    def __init__(self, losses=None, grad_norms=None):
        self.losses, self.grad_norms = losses or {}, grad_norms or {}
        self.events, self.records, self.saved = [], [], {}
        self.before_step = lambda step: None
        self.before_batch = lambda: None

    def run(self, num_steps, start=0, evaluate_start=False, **options):
        """The state after a loop of the fakes; an interval that is not given is a hundred steps."""
        intervals = [options.pop(f"{name}_every", 100) for name in ("log", "evaluate", "save")]
        loop = Loop(
            train_step=self.train_step,
            to_portable=lambda state: state,
            batches=self,
            log=self,
            checkpoints=self,
            evaluate=self.evaluate,
            learning_rate=lambda updates: updates / 10,
            utilization=lambda seconds: {"mfu": 0.1},
            profiler=Profiler("nowhere", 1, 0),
            intervals=Intervals(*intervals, None),
            patience=Patience(),
            diagnostics=None,
            timer=GoodputTimer(),
            **options,
        )
        return loop.run(State(start), start, num_steps, evaluate_start=evaluate_start)

    def train_step(self, state, batch):
        step = state.params + 1
        self.before_step(step)
        self.events.append(("dispatch", step))
        sums = {"tokens": 1.0, "correct": 0.5, "weight": 1.0, "filled": 8.0, "slots": 10.0}
        sums["loss"] = Pending(self, step, self.losses.get(step, float(step)))
        return State(step), sums | {"grad_norm": self.grad_norms.get(step, 2.0)}

    def evaluate(self, step, state):
        assert state.params == step
        self.events.append(("evaluate", step))
        return {"bleu": 10.0 + step}, 10.0 + step

    # As batches.
    def __next__(self):
        self.before_batch()
        return "batch"

    def get_state(self):
        return {"0": "place"}

    def digest(self, streams):
        return f"digest of {streams['0']}"

    def add_workers(self):
        self.events.append("add workers")
        return self.events.count("add workers") < 2

    # As log.
    def advance(self, step):
        pass

    def record(self, step, split, metrics):
        self.records.append((step, split, metrics))

    # As checkpoints.
    def save(self, step, state, data_state):
        assert (state, data_state) == (State(step), {"0": "place"})
        self.events.append(("save", step))
        self.saved[step] = None

    def score(self, step, score):
        self.saved[step] = score

    def wait(self):
        self.events.append(("wait", max(self.saved)))

    def newest_id(self):
        return f"step {max(self.saved)}" if self.saved else None

    def metrics(self, split):
        return {step: metrics for step, of, metrics in self.records if of == split}


class Pending:
    """A number that is still computed on the device; reading it is an event."""

    def __init__(self, parts, step, value):
        self.parts, self.step, self.value = parts, step, value

    def __float__(self):
        self.parts.events.append(("read", self.step))
        return self.value


def test_records_evaluations_and_checkpoints_happen_at_their_intervals_and_at_the_end():
    parts = Parts()
    assert parts.run(10, log_every=2, evaluate_every=3, save_every=4) == State(10)
    assert list(parts.metrics("train")) == [2, 4, 6, 8, 10]
    assert list(parts.metrics("valid")) == [3, 6, 9, 10]
    # Only what was evaluated has a score.
    assert parts.saved == {4: None, 8: None, 10: 20.0}
    assert parts.events[-1] == ("wait", 10)


def test_callbacks_are_called_after_records_checkpoints_and_evaluations():
    parts = Parts()

    class Own(Callback):
        def at_record(self, step, metrics):
            parts.events.append(("at_record", step, metrics["loss"]))

        def at_checkpoint(self, step, state):
            parts.events.append(("at_checkpoint", step, state))

        def at_evaluation(self, step, metrics, params):
            parts.events.append(("at_evaluation", step, metrics["bleu"], params))
            return {"own": 2 * step}

    parts.run(4, log_every=2, evaluate_every=3, callbacks=[Own(None), Callback(None)])
    assert [event for event in parts.events if event[0].startswith("at_")] == [
        ("at_record", 2, 1.5),
        ("at_evaluation", 3, 13.0, 3),
        ("at_record", 4, 3.5),
        ("at_checkpoint", 4, State(4)),
        ("at_evaluation", 4, 14.0, 4),
    ]
    assert parts.metrics("valid")[4] == {"bleu": 14.0, "own": 8, "checkpoint": "step 4"}
    assert "share_callbacks" in parts.metrics("train")[4]


def test_a_callback_that_fails_ends_training_before_its_evaluation_counts():
    class Failing(Callback):
        def at_evaluation(self, step, metrics, params):
            raise ZeroDivisionError

    parts = Parts()
    with pytest.raises(ZeroDivisionError):
        parts.run(10, evaluate_every=3, save_every=3, callbacks=[Failing(None)])
    assert list(parts.saved) == [3] and not parts.metrics("valid")  # a resumed run evaluates it


def test_each_record_covers_exactly_the_steps_since_the_last_one():
    parts = Parts()
    parts.run(8, log_every=3, evaluate_every=2, save_every=5)
    records = parts.metrics("train")
    losses = {step: metrics["loss"] for step, metrics in records.items()}
    assert losses == {3: (1 + 2 + 3) / 3, 6: (4 + 5 + 6) / 3, 8: (7 + 8) / 2}
    assert (records[8]["accuracy"], records[8]["grad_norm"]) == (0.5, 2.0)
    assert records[8]["padding"] == pytest.approx(0.2)
    assert [record["learning_rate"] for record in records.values()] == [0.2, 0.5, 0.7]
    assert {"share_data", "share_saving", "share_evaluating", "goodput"} <= records[8].keys()


def test_sums_are_read_two_steps_late_and_on_a_cpu_one(compiling_for):
    def events(num_steps, **options):
        parts = Parts()
        parts.run(num_steps, **options)
        return [event for event in parts.events if event[0] in ("dispatch", "read")]

    assert events(3)[:4] == [("dispatch", 1), ("dispatch", 2), ("read", 1), ("dispatch", 3)]
    large = [("dispatch", 1), ("read", 1), ("dispatch", 2), ("read", 2)]
    assert events(2, step_bytes=2**29) == large
    compiling_for("gpu")
    ahead = [("dispatch", n) for n in (1, 2, 3)]
    assert events(4)[:5] == [*ahead, ("read", 1), ("dispatch", 4)]


@pytest.fixture
def pass_time(monkeypatch):
    """Function that advances the clock."""
    now = [100.0]
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def pass_time(seconds):
        now[0] += seconds

    return pass_time


def test_speed_excludes_evaluations_and_checkpoints(pass_time):
    def takes(seconds, function):
        def slow(*args):
            pass_time(seconds)
            return function(*args)

        return slow

    parts = Parts()
    parts.train_step = takes(2.0, parts.train_step)
    parts.evaluate, parts.save = takes(50.0, parts.evaluate), takes(70.0, parts.save)
    parts.run(4, log_every=4, evaluate_every=1, save_every=1)
    metrics = parts.metrics("train")[4]
    assert (metrics["step_ms"], metrics["tokens_per_s"]) == (2000.0, 4.0)


def test_waiting_for_data_is_told_once_after_a_minute(caplog, pass_time):
    for share, num_messages in ((0.15, 0), (0.25, 1)):
        parts = Parts()
        parts.add_workers = lambda: False
        parts.before_batch = lambda share=share: pass_time(100 * share)
        parts.before_step = lambda step, share=share: pass_time(100 * (1 - share))
        parts.run(3, log_every=1)
        messages = [text for text in caplog.messages if "wait for batches" in text]
        assert len(messages) == num_messages
    assert messages[0].endswith("raise data.num_workers")


def test_waiting_steps_get_workers_until_there_are_no_more(pass_time):
    parts = Parts()

    def train(waited, start, stop):
        """Trains with records after two steps of a second, of which `waited` is for the batch."""
        parts.before_batch = lambda: pass_time(waited)
        parts.before_step = lambda step: pass_time(1.0 - waited)
        parts.run(stop, start, log_every=2)
        return parts.events.count("add workers")

    assert train(0.09, 0, 2) == 0
    assert train(0.11, 2, 4) == 1
    # The time for which the new workers start does not count: the next record adds none.
    parts.events.clear()
    assert train(0.11, 4, 10) == 2


def test_overlong_examples_are_recorded():
    parts = Parts()
    parts.run(1, log_every=1)
    assert "overlong" not in parts.metrics("train")[1]
    parts.overlong, parts.seen = 3, 40
    parts.run(2, 1, log_every=1)
    metrics = parts.metrics("train")[2]
    assert (metrics["overlong"], metrics["seen"]) == (3, 40)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("what", ["losses", "grad_norms"])
@pytest.mark.parametrize("every", [1, 5])
def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(what, value, every):
    parts = Parts(**{what: {5: value}})
    with pytest.raises(UserError, match=r"not finite at step 5, .*learning_rate"):
        parts.run(10, save_every=every, evaluate_every=every)
    assert list(parts.saved) == ([1, 2, 3, 4] if every == 1 else [])
    assert ("evaluate", 5) not in parts.events
    with pytest.raises(UserError, match=r"at step 1, .*attention=plain"):  # before any update
        Parts(**{what: {1: value}}).run(4)


@pytest.mark.parametrize("step", [3, 10])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_loop_with_the_step_saved_and_not_evaluated(step, number):
    parts = Parts()
    parts.before_step = lambda now: now < step or os.kill(os.getpid(), number)
    handler = signal.getsignal(number)
    name = "SIGTERM" if number == signal.SIGTERM else "an interrupt"
    message = f"stopped by {name} at step {step} of 10, saved; the same command continues"
    with pytest.raises(Stopped, match=message) as stop:
        parts.run(10)
    assert isinstance(stop.value, Interrupted) == (number == signal.SIGINT)
    assert parts.saved == {step: None} and parts.events[-1] == ("wait", step)
    assert [record[:2] for record in parts.records] == [(step, "train")]
    assert signal.getsignal(number) is handler


def test_an_interrupt_of_an_evaluation_saves_the_step():
    def interrupt(step, state):
        os.kill(os.getpid(), signal.SIGINT)

    def compiled(step, state):
        with contextlib.suppress(KeyboardInterrupt):
            interrupt(step, state)
        raise SystemError("of compiled code")

    for evaluate in (interrupt, compiled):
        parts = Parts()
        parts.evaluate = evaluate
        with pytest.raises(Interrupted, match="at step 4 of 10, saved"):
            parts.run(10, save_every=9, evaluate_every=4)
        assert list(parts.saved) == [4] and not parts.metrics("valid")
    # One of a saved step, before the next one, loses nothing; then a program ends at the next.
    parts.evaluate = interrupt
    not_called = Mock()
    on_interrupt = signal.signal(signal.SIGINT, not_called)
    with pytest.raises(KeyboardInterrupt):
        parts.run(10, 4, evaluate_start=True)
    signal.signal(signal.SIGINT, on_interrupt)
    assert not not_called.called


def test_a_second_interrupt_stops_at_once():
    parts = Parts()
    parts.before_step = lambda now: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]
    with pytest.raises(KeyboardInterrupt):
        parts.run(10)
    assert not parts.saved


def test_a_loop_runs_in_any_thread():
    parts = Parts()
    thread = threading.Thread(target=parts.run, args=(2,))
    thread.start()
    thread.join()
    assert list(parts.saved) == [2]


class Skipping(Parts):
    """Skips these steps."""

    def __init__(self, *skipped):
        super().__init__()
        self.skipped = skipped

    def train_step(self, state, batch):
        state, sums = super().train_step(state, batch)
        if state.params in self.skipped:
            return state, dict.fromkeys(sums, 0.0) | {"skipped": 1.0}
        return state, sums | {"skipped": 0.0}


def test_skipped_steps_are_counted_and_do_not_enter_the_means():
    parts = Skipping(2, 5, 6)
    parts.run(6, log_every=3)
    names = ("skipped", "loss", "grad_norm")
    records = parts.metrics("train").items()
    found = {step: [metrics[name] for name in names] for step, metrics in records}
    assert found == {3: [1, 2.0, 2.0], 6: [2, 4.0, 2.0]}


def test_skipped_steps_end_a_training_if_they_are_many_or_it_rewinds():
    with pytest.raises(UserError, match="50 updates up to step 52 were skipped one after"):
        Skipping(*range(3, 100)).run(100)
    parts = Skipping(4)
    with pytest.raises(SpikedError, match="spiked at step 4"):
        parts.run(6, save_every=4, rewinds=True)
    assert not parts.saved


def test_time_without_an_activity_is_that_of_steps(pass_time):
    timer = GoodputTimer()
    with timer.measure("compiling"):
        pass_time(1)
    pass_time(3)
    timer.attribute_rest("starting")
    pass_time(4)
    with pytest.raises(ValueError), timer.measure("evaluating"):
        pass_time(2)
        raise ValueError
    shares = timer.shares()
    assert shares == pytest.approx(
        {"goodput": 0.4, "share_compiling": 0.1, "share_starting": 0.3, "share_evaluating": 0.2}
    )


NAN = math.nan


def test_two_evaluations_without_a_better_score_exhaust_patience():
    exhausted = [[1, 2, 2, 1.5], [NAN, NAN]]
    waiting = [[1, 2, 3, 4], [1, 2, 2], [1, 0, 2, 1], [-3, NAN, -2]]
    assert all(Patience(2, scores=scores).is_exhausted for scores in exhausted)
    assert not any(Patience(2, scores=scores).is_exhausted for scores in waiting)


def test_two_evaluations_without_a_better_score_lower_the_rate():
    """And again after two more since it was lowered."""
    by_rate = {
        1.0: [(1, 2, 3), (3, 2)],
        0.1: [(3, 2, 1), (3, 2, 1, 2), (3, 2, 1, 2, 4, 3)],
        0.01: [(3, 2, 1, 2, 2), (3, 2, 1, 4, 3, 3)],
    }
    for rate, histories in by_rate.items():
        for scores in histories:
            patience = Patience(lowers_after=2, factor=0.1, scores=list(scores))
            assert patience.rate == pytest.approx(rate), scores
            assert not patience.is_exhausted


def test_a_metric_above_its_limit_is_told_once(caplog):
    class Dropping(Parts):
        def train_step(self, state, batch):
            state, sums = super().train_step(state, batch)
            return state, sums | {"aux/dropped": 6.0, "aux_count/dropped": 10.0}

    parts = Dropping()
    parts.run(3, log_every=1)
    assert [metrics["aux/dropped"] for metrics in parts.metrics("train").values()] == [0.6] * 3
    (told,) = [line for line in caplog.messages if "aux/dropped" in line]
    assert "is 0.60" in told and "capacity_factor" in told


def test_replicas_have_the_patience_of_runs_alone():
    scores = np.array([[3.0, 1.0], [2.0, 2.0], [1.0, np.nan], [1.5, 1.0], [4.0, 1.0]])
    together = Patience(3, lowers_after=2, factor=0.5)
    alone = [Patience(3, lowers_after=2, factor=0.5) for _ in range(2)]
    for of_step in scores:
        together.add(of_step)
        for patience, score in zip(alone, of_step, strict=True):
            patience.add(score)
        np.testing.assert_array_equal(together.rate, [each.rate for each in alone])
        assert together.is_exhausted == all(each.is_exhausted for each in alone)
    assert [*together.rate] == [0.5, 0.5] and alone[1].is_exhausted

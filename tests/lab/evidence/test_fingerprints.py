# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of rows, statistics and experiments: which change names which part."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import transformer_jax as tj
from transformer_jax.data.batches import pipeline
from transformer_jax.lab.evidence import fingerprints
from transformer_jax.lab.evidence.fingerprints import code_fingerprint, experiment_fingerprint
from transformer_jax.runs import build
from transformer_jax.runs.config import resolve
from transformer_jax.runs.settings import COMMAND
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.training.loop import Loop

LINES = [f"{'abcdefgh'[i % 8]} dog {i % 7} sees {i % 5}\n" for i in range(60)]


@pytest.fixture(scope="module")
def row(tiny_language_model, tmp_path_factory):
    """`row(overrides, texts)`: fingerprints of a small row."""
    folder = tmp_path_factory.mktemp("texts")
    paths = {f"data.{name}_text": str(folder / name) for name in ("train", "valid")}
    base = tiny_language_model | paths | {"optimizer.schedule": "constant"}

    def of(overrides=None, train=LINES, valid=LINES[:20]):
        for name, lines in {"train": train, "valid": valid}.items():
            (folder / name).write_text("".join(lines))
        fingerprints.of_row.cache_clear()
        settings = resolve(tj.config("quickstart", base | (overrides or {})), {}, (), COMMAND)
        return fingerprints.row_fingerprints({"row": settings}, (), False)["row"]

    return of


def scaled(method, index=0):
    """A method whose result, or the first part of it, is multiplied."""

    def changed(*args, **kwargs):
        result = method(*args, **kwargs)
        if isinstance(result, tuple):
            return 1.5 * result[0], *result[1:]
        return jax.tree.map(lambda x: x * 2, result)

    return changed


def another_order(order):
    return lambda source, seed: order(source, seed + 1)


def stronger(make_optimizer):
    return lambda *args: optax.chain(make_optimizer(*args), optax.scale(1.01))


def test_each_change_of_a_row_is_named(row, monkeypatch):
    loss_and_order = {
        (LanguageModeling, "loss"): scaled,
        (pipeline, "endless_order"): another_order,
    }
    others = {(LanguageModeling, name): scaled for name in ("init", "metrics")}
    others[build, "make_optimizer"] = stronger
    tokens = {"order", "validation tokens"}
    data = {"train": ["dog a 0 sees 0\n", *LINES[1:]], "valid": LINES[:19]}
    before = row()
    failures = []
    for overrides, texts, code, parts in (
        ({"optimizer.learning_rate": 0.5}, {}, {}, {"step"}),
        ({"seed": 1}, {}, {}, {"order", "initial parameters"}),
        ({"data.order_seed": 5}, {}, {}, {"order"}),
        ({"data.max_length": 88}, {}, {}, {"step", "evaluation"} | tokens),
        ({"tokenizer.normalization": "identity"}, {}, {}, {"tokenizer of text"} | tokens),
        ({}, data, {}, {"training data", "validation data"} | tokens),
        ({}, {}, loss_and_order, {"step", "evaluation", "order"}),
        ({}, {}, others, {"initial parameters", "metrics", "step"}),
    ):
        with monkeypatch.context() as patch:
            for (owner, attribute), changed in code.items():
                patch.setattr(owner, attribute, changed(getattr(owner, attribute)))
            after = row(overrides, **texts)
        differing = {part for part in before if before[part] != after[part]}
        if differing != parts:
            failures.append((overrides, texts, code, differing))
    assert not failures


FACTOR = 2.0


def score(run, beam=4):
    """Words."""
    outputs = run.predict(["a"], beam_size=beam)
    return FACTOR * max(helper(outputs), 0)


def helper(outputs):
    return sum(len(output) for output in outputs)


def another_name(model, width=4):
    texts = model.predict(["a"], beam_size=width)  # a comment
    return FACTOR * max(moved(texts), 0)


def moved(texts):
    return sum(len(text) for text in texts)


def test_a_statistic_is_its_code_without_names():
    assert code_fingerprint(score) == code_fingerprint(another_name)
    others = [
        functools.partial(score, beam=1),
        lambda run, beam=5: FACTOR * max(helper(run.predict(["a"], beam_size=beam)), 0),
        lambda run, beam=4: FACTOR * max(helper(run.predict(["b"], beam_size=beam)), 0),
        lambda run, beam=4: FACTOR * min(helper(run.predict(["a"], beam_size=beam)), 0),
        lambda run, beam=4: np.pi * max(helper(run.predict(["a"], beam_size=beam)), 0),
    ]
    assert len({code_fingerprint(function) for function in [score, *others]}) == 1 + len(others)


class Probe:
    """Words above a limit."""

    limit = 2

    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, run):
        return self.factor * max(self.count(run) - self.limit, 0)

    def count(self, run):
        return sum(len(output) for output in run.predict(["a"]))


PROBE = Probe()
MODULE = sys.modules[__name__]


def test_code_that_a_statistic_calls_counts(monkeypatch):
    """Also in classes, instances and modules of the user's own."""
    in_closure = (lambda module: lambda run: module.helper(run) * module.FACTOR)(MODULE)
    for statistic, owner, name, value in (
        (score, MODULE, "FACTOR", 3.0),
        (score, MODULE, "helper", len),
        (lambda run: MODULE.score(run), MODULE, "FACTOR", 3.0),
        (in_closure, MODULE, "FACTOR", 3.0),
        (in_closure, MODULE, "helper", len),
        (lambda run: Probe(2.0)(run), Probe, "count", len),
        (lambda run: PROBE(run), PROBE, "factor", 2.0),
        (PROBE, Probe, "count", len),
        (PROBE.count, Probe, "limit", 3),
    ):
        before = code_fingerprint(statistic)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert code_fingerprint(statistic) != before, (name, value)
        assert code_fingerprint(statistic) == before
    assert code_fingerprint(PROBE.count) != code_fingerprint(PROBE.__call__)


def test_how_much_is_logged_is_no_part_of_the_code(caplog):
    before = code_fingerprint(Loop.run)
    caplog.set_level("DEBUG", logger="transformer_jax.training.loop")
    assert code_fingerprint(Loop.run) == before


def test_an_experiment_is_the_programs_that_it_runs():
    def drawn(seed, scale=2.0):
        x = jax.random.normal(jax.random.key(seed), (4,))
        return float(jnp.sum(x * scale)), float(jax.jit(jnp.sin)(x)[0])

    def reordered(seed):
        x = jax.random.normal(jax.random.key(seed), (4,))
        sine = float(jax.jit(lambda angle: jnp.sin(angle))(x)[0])
        return float(jnp.sum(x * 2.0)), sine

    assert experiment_fingerprint(drawn) == experiment_fingerprint(reordered)
    one_more = lambda seed: (*drawn(seed), jnp.arange(3).prod())  # noqa: E731
    assert experiment_fingerprint(drawn) != experiment_fingerprint(one_more)

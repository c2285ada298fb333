# SPDX-License-Identifier: Apache-2.0
"""Oracles of tokenizers, searches, metrics, schedules, optimizers, kernels and callbacks."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import write_records
from transformer_jax.lab.verification import component_oracles as oracles
from transformer_jax.lab.verification.float64 import in_float64
from transformer_jax.runs.config import resolve_file
from transformer_jax.tokenization import TOKENIZERS

TWO_LAYERS = {"model.num_layers": 2}
WRONG = [
    (oracles.tokenized, {"tokenizer.kind": "loses_e"}, "is decoded to another text"),
    (oracles.searched, {"decode.search": "of_batch"}, "first at sentence 0 by itself"),
    (oracles.tokenized, {"tokenizer.kind": "marks_late"}, "with a mark of words in it"),
    (oracles.searched, {"decode.search": "of_batch_entropy"}, "by itself"),
    (oracles.searched, {"decode.constraint": "of_width"}, "by itself"),
    (oracles.scheduled, {"optimizer.schedule": "below_zero"}, "in the rates: -0.999"),
    (oracles.updated, TWO_LAYERS | {"optimizer.name": "counts_traces"}, "most in decoder/layer_"),
    (oracles.updated, TWO_LAYERS | {"optimizer.transforms": "own_noise"}, "most in "),
    (oracles.lost, {"train.loss": "lost_tile"}, "most in "),
    (oracles.predicted, {"task.name": "sorted_lines", "data.name": "table"}, "first at line 1: "),
    (oracles.updated, TWO_LAYERS | {"optimizer.name": "of_stack"}, "most in decoder/layer_"),
    (
        oracles.continued,
        {"train.callbacks": "counts_calls"},
        "in the records: valid/calls at step 3",
    ),
]


@pytest.fixture(scope="module")
def two_layers(subject_of):
    return subject_of(TWO_LAYERS)


@pytest.mark.parametrize(("oracle", "changes", "where"), WRONG)
def test_finds_the_fault(subject_of, right, two_layers, oracle, changes, where):
    origins = {oracles.searched: right, oracles.updated: two_layers}
    found = oracle(subject_of(changes, origins.get(oracle)))
    assert not found.is_equal and where in found.where


def test_a_right_component_passes(subject_of, right, two_layers):
    assert oracles.scheduled(right).is_equal and oracles.updated(two_layers).is_equal
    # A search gets hidden states.
    assert oracles.searched(subject_of({"decode.search": "reads_hidden"}, right)).is_equal


@pytest.mark.parametrize("kind", [kind for kind in TOKENIZERS if kind != "file"])
def test_every_kind_of_tokenizer_passes(subject_of, kind):
    changes = {"tokenizer.kind": kind, "tokenizer.vocab_size": 300}
    assert oracles.tokenized(subject_of(changes)).is_equal


def test_a_metric_has_its_own_name_and_knows_no_order(subject_of):
    def scored(metric):
        task = resolve_file("quickstart", {"task.metric": metric}).task
        return oracles.scored(SimpleNamespace(settings=SimpleNamespace(task=task)))

    subject_of()  # registers the metrics
    assert scored("weighed").is_equal
    assert scored("bleu").is_equal and scored("exact_match").is_equal
    assert scored("first_pair").where == "most in first_pair"
    assert scored("last_of_reference").where == "most in last_of_reference"
    assert "it returns other_name, no nameless" in scored("nameless").where


def test_records_are_compared_whatever_their_values(tmp_path):
    record = {"step": 4, "split": "valid", "loss": 1.5, "counts": [1, 2]}
    write_records(tmp_path / "run", record, {**record, "step": 8})
    write_records(tmp_path / "same", record, {**record, "step": 8})
    write_records(tmp_path / "other", record, {**record, "step": 8, "counts": [1, 3]})
    assert oracles.differing_records(tmp_path / "run", tmp_path / "same") == []
    differ = oracles.differing_records(tmp_path / "run", tmp_path / "other")
    assert differ == [(8, "valid", "counts")]


def test_a_program_in_float64_has_no_rounding():
    def program(x, length):
        low = jax.nn.softmax(x.astype(jnp.bfloat16)).astype(x.dtype)
        sums, rows = jax.lax.scan(lambda total, row: (total / 3 + row, total), jnp.zeros(4), x)
        grown = jax.lax.while_loop(lambda i: i[0] < length, lambda i: (i[0] + 1, i[1] * x), (0, x))
        chosen = jax.lax.cond(x.sum() > 0, jnp.exp, jnp.sin, x)
        picked = jnp.zeros(4).at[jnp.array([1, 1])].add(x[0, :2])
        return low, sums, rows, grown[1], jax.checkpoint(jnp.tanh)(chosen), picked

    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    wide = x.astype(np.float64)
    weights = np.exp(wide) / np.exp(wide).sum(-1, keepdims=True)
    rows = [np.zeros(4)]
    for row in wide:
        rows.append(rows[-1] / 3 + row)
    chosen = np.exp(wide) if wide.sum() > 0 else np.sin(wide)
    picked = np.array([0, wide[0, :2].sum(), 0, 0])
    expected = (weights, rows[-1], np.array(rows[:-1]), wide**4, np.tanh(chosen), picked)
    for found, value in zip(in_float64(program, x, 3), expected, strict=True):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, value, rtol=1e-13, atol=1e-15)

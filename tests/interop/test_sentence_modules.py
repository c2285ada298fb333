# SPDX-License-Identifier: Apache-2.0
"""Models of sentence-transformers give its vectors, and are exported with their modules."""

import functools
import io
import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.interop.published import FIXTURES
from transformer_jax.cli.main import main
from transformer_jax.interop.exporting import export_run
from transformer_jax.interop.sentence_modules import read_sentence_modules

EXPECTED = json.loads((FIXTURES / "sentences" / "expected.json").read_text())
LINES, VECTORS = EXPECTED["lines"], np.array(EXPECTED["vectors"])


@pytest.fixture(scope="module")
def run(run_of):
    return run_of("sentences")


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(FIXTURES / "sentences", tmp_path / "model")


def test_vectors_are_those_of_sentence_transformers(run):
    assert run.settings.data.max_length == 12
    found = run.embed(LINES)
    np.testing.assert_allclose(found, VECTORS, atol=1e-5)
    # A line's vector does not depend on the others.
    np.testing.assert_allclose(run.embed(LINES[1:2]), VECTORS[1:2], atol=1e-5)
    assert run.embed([]).shape == (0, 16)


def test_pooling_and_normalization_can_be_chosen(run):
    raw = run.with_config({"task.normalize": False}).embed(LINES)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 1e-3
    np.testing.assert_allclose(raw / lengths, VECTORS, atol=1e-5)
    tokens = run.tokenizer["text"]
    rows = jnp.asarray([tokens.specials.encoder.around(tokens.encode(LINES[0]))])
    inputs = (rows, jnp.arange(rows.shape[1])[None], jnp.ones_like(rows))
    features = jax.jit(functools.partial(run.model.apply, method="features"))
    states = features({"params": run.params}, *inputs)[0]
    for pooling, vector in {"cls": states[0], "max": states.max(0)}.items():
        other = run.with_config({"task.normalize": False, "task.pooling": pooling})
        np.testing.assert_allclose(other.embed(LINES[:2])[0], vector, atol=1e-5)
    with pytest.raises(tj.UserError, match="task.pooling is not set"):
        run.with_config({"task.pooling": None, "task.normalize": False}).embed(LINES)
    with pytest.raises(tj.UserError, match="normalize is set, and there are no vectors"):
        run.with_config({"task.pooling": None})


def test_embed_writes_one_list_a_line(run, capsysbinary, monkeypatch):
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(LINES).encode() + b"\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["embed", f"--workdir={run.workdir}"]) == 0
    found = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    np.testing.assert_allclose(found, VECTORS, atol=0.02)  # products may be bfloat16


def test_the_modules_are_exported(run, tmp_path):
    export_run(run, tmp_path / "out", "hf")
    found, original = (
        read_sentence_modules(path) for path in (tmp_path / "out", FIXTURES / "sentences")
    )
    assert found == original
    assert found.fields == {"data.max_length": 12, "task.pooling": "mean", "task.normalize": True}


OLD = {
    "word_embedding_dimension": 16,
    "pooling_mode_cls_token": True,
    "pooling_mode_mean_tokens": 0,
}


@pytest.mark.parametrize(
    "pooling, expected",
    [
        (OLD, "cls"),
        (OLD | {"pooling_mode_mean_tokens": True}, None),
        (OLD | {"pooling_mode_cls_token": False, "pooling_mode_lasttoken": True}, None),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": "weightedmean"}, None),
        ({"pooling_mode": "mean", "include_prompt": False}, None),
    ],
)
def test_poolings_of_older_and_newer_files(copy, pooling, expected):
    (copy / "1_Pooling/config.json").write_text(json.dumps(pooling))
    found = read_sentence_modules(copy)
    assert found.fields.get("task.pooling") == expected
    assert bool(found.warnings) == (expected is None)


def test_other_modules_are_named_and_hostile_paths_refused(copy):
    modules = json.loads((copy / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (copy / "modules.json").write_text(json.dumps([*modules[:2], dense]))
    found = read_sentence_modules(copy)
    assert "task.pooling" not in found.fields and "'Dense'" in found.warnings[0]
    modules[1]["path"] = "../../elsewhere"
    (copy / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(tj.UserError, match="is not the name of a file below"):
        read_sentence_modules(copy)
    (copy / "modules.json").write_text('{"a": 1}')
    with pytest.raises(tj.UserError, match="modules.json cannot be read"):
        read_sentence_modules(copy)

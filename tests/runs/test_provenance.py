# SPDX-License-Identifier: Apache-2.0
"""A run continues only with the tokenizers and the data that it was trained with."""

import logging
import shutil

import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from tests.runs.conftest import contents
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.store import open_snapshot
from transformer_jax.data.examples import LinePairs
from transformer_jax.data.sources import open_split
from transformer_jax.runs import provenance
from transformer_jax.runs.config import load_json
from transformer_jax.tokenization import train_tokenizers

STEPS = ("15", "30")


@pytest.fixture
def swapped(workdir):
    """A run whose tokenizer was replaced by another one of equal size."""
    settings = load_json(workdir / "config.json")
    pairs = open_split(settings.data, "train")
    texts = {side: [pair["target"] for pair in pairs] for side in ("source", "target")}
    shutil.rmtree(workdir / "tokenizer")
    train_tokenizers(settings.tokenizer, texts, workdir / "tokenizer")
    return workdir


def test_a_swapped_tokenizer_of_equal_size_is_refused(swapped, tiny_config, tmp_path):
    longer = tiny_config({"train.num_steps": 40})
    started = tiny_config({"train.init_from": str(swapped)})
    before = contents(swapped)
    for use in (
        lambda: tj.load(swapped),
        lambda: tj.load(swapped, "best", average=2),
        lambda: tj.train(longer, swapped),
        lambda: tj.train(started, tmp_path / "new"),
    ):
        assert_refused({f"{swapped} was trained with another tokenizer of": use})
    assert contents(swapped) == before
    assert not (tmp_path / "new" / "tokenizer").exists()


def test_a_missing_tokenizer_is_not_trained_again(workdir, tiny_config):
    shutil.rmtree(workdir / "tokenizer")
    before = contents(workdir)
    longer = tiny_config({"train.num_steps": 40})
    message = "tokenizer/sides.json: the tokenizer cannot be read"
    assert_refused({message: lambda: tj.train(longer, workdir)})
    assert contents(workdir) == before


def test_other_training_data_is_refused(workdir, tiny_config, monkeypatch):
    opened = []

    def open_other(config, split):
        return opened[-1] if split == "train" else open_split(config, split)

    monkeypatch.setattr("transformer_jax.runs.prepare.open_split", open_other)
    before = contents(workdir)
    pairs = list(open_split(load_json(workdir / "config.json").data, "train"))
    message = "trained with another training data: 300 examples, SHA"
    longer = tiny_config({"train.num_steps": 40})
    changed = [*pairs[:150], {"source": "a", "target": "b"}, *pairs[151:]]
    for others in (pairs[:-1], changed, pairs[::-1]):
        opened.append(others)
        assert_refused({message: lambda: tj.train(longer, workdir)})
    assert contents(workdir) == before


def test_a_resumed_run_says_whether_its_bits_are_those_of_before(
    language_model_workdir, config_of_text, tmp_path, monkeypatch, caplog
):
    workdir = shutil.copytree(language_model_workdir, tmp_path / "run")
    monkeypatch.setattr(provenance, "code_version", lambda: "transformer_jax 9")
    with caplog.at_level(logging.INFO, logger="transformer_jax"):
        tj.train(config_of_text({"train.num_steps": 31}), workdir)
    bits = "its step computes what it did before, bit for bit, though the code has changed"
    assert f"{workdir}: {bits}" in caplog.text
    saved = open_snapshot(workdir / "checkpoints").provenance
    assert provenance.compare_bits(saved, saved) == bits.partition(", though")[0]
    monkeypatch.setenv("XLA_FLAGS", "--xla_any=true")
    other = saved | {"step": "SHA-256 1"} | provenance.machine_provenance()
    bits = f"may not be those of before: another step ({saved['step']}; here: SHA-256 1), another "
    message = provenance.compare_bits(other, saved)
    assert f"{bits}libraries (jax" in message and "processor" not in message


def test_checkpoints_without_provenance_are_accepted(swapped):
    for step in STEPS:
        folder = swapped / "checkpoints" / step
        shutil.rmtree(folder / "provenance")
        manifest.write_manifest(folder)
    assert tj.load(swapped).step == 30


def test_the_same_examples_have_the_same_provenance_in_any_container():
    sources, targets = [str(i) for i in range(30_000)], [str(-i) for i in range(30_000)]
    lazy = LinePairs(sources, targets)
    assert provenance.data_digest(lazy) == provenance.data_digest(list(lazy))
    sources[1] = "another"
    data = provenance.data_digest(lazy)
    assert data != provenance.data_digest(lazy[:29_999])
    sources[1] = "1"
    assert provenance.data_digest(lazy) != data
    assert data.startswith("30000 examples, SHA-256 ")

# SPDX-License-Identifier: Apache-2.0
"""Steps, warm-up and vocabulary by the size of the data."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

import transformer_jax as tj
from transformer_jax.runs.config import load_json, override, resolve_file
from transformer_jax.runs.data_size import SCALED, scaled_to_data
from transformer_jax.runs.prepare import build_tokenizers

CONFIG = Path(__file__).parents[2] / "configs" / "parallel_text.py"


def pairs(count, words=5):
    """Pairs of random-looking words; the more pairs, the more words."""
    word = lambda i: f"{'abcdefghij'[i % 10]}{i * 7919 % (2 * count)}"  # noqa: E731
    line = lambda i: " ".join(word(i * words + j) for j in range(words))  # noqa: E731
    return [{"source": line(i), "target": line(i + 1).upper()} for i in range(count)]


def sizes_of(settings):
    return {name: settings.values[name] for name in SCALED}


@pytest.mark.parametrize(
    ("kind", "count"),
    [("bpe", 2), ("bpe", 300), ("byte_bpe", 300), ("word", 300)],
)
def test_a_small_set_has_a_vocabulary_that_can_be_trained(kind, count, tmp_path):
    settings = scaled_to_data(resolve_file(CONFIG, {"tokenizer.kind": kind}), pairs(count))
    sizes = sizes_of(settings)
    assert sizes["tokenizer.vocab_size"] < 3000 and sizes["train.num_steps"] == 400
    assert sizes["optimizer.warmup_steps"] == sizes["eval.every_steps"] == 40
    assert sizes["checkpoint.every_steps"] == 40 and sizes["logging.every_steps"] == 10
    tokenizers = build_tokenizers(settings, tmp_path / "tokenizer", pairs(count))
    assert tokenizers.text("source").vocab_size <= sizes["tokenizer.vocab_size"]


def test_a_medium_set_trains_longer_and_a_large_one_as_configured():
    some = pairs(20_000)
    medium = sizes_of(scaled_to_data(resolve_file(CONFIG, {}), some))
    tokens = max(sum(len(pair[side]) for pair in some) for side in ("source", "target"))
    assert medium["train.num_steps"] == pytest.approx(30 * tokens / 4 / 4608, abs=1)
    assert 400 < medium["train.num_steps"] < 20_000
    large = sizes_of(scaled_to_data(resolve_file(CONFIG, {}), 6 * pairs(5_000, words=80)))
    assert large == sizes_of(resolve_file(CONFIG, {}))


def test_what_is_scaled_is_told_and_can_be_switched_off(caplog):
    caplog.set_level(logging.INFO)
    settings = resolve_file(CONFIG, {})
    scaled = scaled_to_data(settings, pairs(300))
    (told,) = caplog.messages
    assert told.startswith("scaled to 300 pairs of about ") and "train.num_steps 400, " in told
    assert scaled_to_data(scaled, pairs(5000)) == scaled  # once
    off = override(settings, {"train.scale_to_data": False})
    assert scaled_to_data(off, pairs(300)) == off


@pytest.fixture
def fitted(monkeypatch):
    """Settings of the runs that would be trained; none is."""
    settings = []

    def fit(trainable, *_):
        settings.append(trainable.settings)
        return SimpleNamespace(params={}, model_params={}, step=0)

    monkeypatch.setattr("transformer_jax.runs.train.fit", fit)
    return settings


def test_a_run_saves_the_sizes_that_it_starts_with(tiny_config, tmp_path, fitted):
    changes = {"train.scale_to_data": True, "train.num_steps": 15, "optimizer.warmup_steps": 50}
    run = tj.train(tiny_config(changes), tmp_path / "run")
    saved = load_json(tmp_path / "run" / "config.json")
    assert sizes_of(saved) == sizes_of(run.settings) and not saved.train.scale_to_data
    assert saved.optimizer.warmup_steps == 1 and saved.tokenizer.vocab_size < 800
    (settings,) = fitted
    assert settings.tokenizer.vocab_size == saved.tokenizer.vocab_size


def test_a_resumed_run_keeps_its_sizes(workdir, tiny_config, fitted):
    """Its data would be scaled otherwise by this version."""
    saved = load_json(workdir / "config.json")
    run = tj.train(tiny_config({"train.scale_to_data": True}), workdir)
    assert sizes_of(run.settings) == sizes_of(saved) == sizes_of(load_json(workdir / "config.json"))
    assert saved.tokenizer.vocab_size == 800
    tj.train(override(saved, {"train.num_steps": 31}), workdir)
    assert [settings.train.num_steps for settings in fitted] == [30, 31]

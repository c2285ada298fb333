# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of a run: trained, or copied from the run that it starts from."""

import dataclasses
import logging

import pytest

import transformer_jax as tj
from tests.conftest import ROOT
from tests.refusals import assert_refused
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.runs import prepare
from transformer_jax.runs.build import build_task, vocab_sizes
from transformer_jax.runs.config import load_json, override, read_settings, resolve_file
from transformer_jax.runs.prepare import SCALED, build_tokenizers, scaled_to_data
from transformer_jax.tasks import TASKS
from transformer_jax.tokenization import load_tokenizers

SEPARATE = {"tokenizer.joint": False, "model.tie_embeddings": "target"}


def test_tokenizers_are_trained_once_and_then_loaded(tiny_config, tmp_path):
    settings = read_settings(tiny_config(SEPARATE | {"tokenizer.vocab_size": 60}))
    examples = [{"source": "the dog sees a cat", "target": "der Hund sieht eine Katze"}] * 3
    pairs = open_split(DataConfig(synthetic_size=50), "train")
    trained = build_tokenizers(settings, tmp_path / "tokenizer", pairs)
    assert vocab_sizes(trained) == {"source": 60, "target": 60}
    again = build_tokenizers(settings, tmp_path / "tokenizer", examples)
    for side in ("source", "target"):
        text = examples[0][side]
        assert again[side].encode(text) == trained[side].encode(text)
    assert trained["source"].encode("the dog") != trained["target"].encode("the dog")


TAGGING = {"task.name": "tagging", "data.name": "tagged_words"}


def test_data_of_another_kind_is_refused(tiny_config, tmp_path):
    settings = read_settings(tiny_config(TAGGING))
    pairs = [{"source": "a", "target": "b"}]
    message = "task tagging reads tags and text, but the examples of tagged_words have source and"
    assert_refused({message: lambda: build_tokenizers(settings, tmp_path / "new", pairs)})


def test_labels_come_from_the_examples(tiny_config, tmp_path, monkeypatch):
    changes = TAGGING | {"tokenizer.vocab_size": 20, "tokenizer.kind": "char"}
    settings = read_settings(tiny_config(changes))
    two_sides = {"tags": str.split, "genre": lambda genre: [genre]}
    kind = dataclasses.replace(TASKS["tagging"], labels=two_sides)
    monkeypatch.setattr(prepare, "task_kind", lambda _: kind)
    examples = [
        {"text": "the dog", "tags": "D N", "genre": "calm"},
        {"text": "sees", "tags": "V", "genre": "short"},
    ]
    tokenizers = build_tokenizers(settings, tmp_path / "tokenizer", examples)
    assert tokenizers["tags"].names == ("D", "N", "V") and vocab_sizes(tokenizers)["tags"] == 3
    assert tokenizers["genre"].names == ("calm", "short")


TREES = [{"source": "a dog", "target": "(TOP (NP (DT a) (NN dog)))"}]
PARSING = {
    "task.name": "parsing",
    "model.tie_embeddings": "target",
    "tokenizer.kind": "char",
    "tokenizer.vocab_size": 20,
}


def test_symbols_come_from_the_examples(tiny_config, tmp_path):
    found = build_tokenizers(read_settings(tiny_config(PARSING)), tmp_path / "new", TREES)
    assert found.text("target").symbols == ("(NP", "(TOP", ")", "DT", "NN")
    assert load_tokenizers(tmp_path / "new").text("target").symbols == found["target"].symbols
    assert not found.joint and found.specials("target").eos == found.specials("source").eos


def test_symbols_are_listed_again_for_a_run_that_starts_from_another(
    tiny_config, trained_workdir, tmp_path
):
    changes = PARSING | {"train.init_from": str(trained_workdir)}
    found = build_tokenizers(read_settings(tiny_config(changes)), tmp_path / "new", TREES)
    origin = load_tokenizers(trained_workdir / "tokenizer")
    assert found["source"].encode("the dog") == origin["source"].encode("the dog")
    assert vocab_sizes(found)["target"] == 4 + 5


PAIR = [{"source": "a dog", "target": "ein Hund"}]


def test_fields_of_a_tokenizer_that_is_not_used_are_told(
    tiny_config, trained_workdir, tmp_path, caplog
):
    def told(number, changes):
        caplog.clear()
        changes = {"train.init_from": str(trained_workdir), "tokenizer.sampling": 0.1} | changes
        settings = read_settings(tiny_config(changes))
        build_tokenizers(settings, tmp_path / str(number), PAIR)
        return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]

    other = {"tokenizer.vocab_size": 123, "tokenizer.lowercase": True}
    message = (
        "tokenizer.vocab_size, tokenizer.lowercase: not used, because the tokenizers are those of "
        f"{trained_workdir}, which has other values"
    )
    for number, (changes, messages) in enumerate(((other, [message]), ({}, []))):
        assert told(number, changes) == messages


def test_a_mistyped_origin_is_named(tiny_config, tmp_path):
    (tmp_path / "gpt2").mkdir()
    config = tiny_config({"train.init_from": str(tmp_path / "gtp2")})
    message = f"config.train.init_from: {tmp_path}/gtp2 holds no run: config.json is missing; "
    message += f"did you mean {tmp_path}/gpt2?"
    assert_refused({message: lambda: tj.train(config, tmp_path / "run")})


def test_an_origin_of_another_kind_is_named(tiny_config, tmp_path):
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text('{"model_type": "bert"}')
    from_it = tiny_config({"train.init_from": str(published)})
    changes = {"model.architecture": "encoder_only", "train.init_from": "runs/bert"}
    from_bert = read_settings(tiny_config(), changes)

    def build(**vocab_sizes):
        return lambda: build_task(from_bert, vocab_sizes, None)

    assert_refused(
        {
            f"config.train.init_from: {published} holds a published model, not a run; "
            f"`transformer_jax import --from={published} --workdir=DIR`": (
                lambda: tj.train(from_it, tmp_path / "run")
            ),
            "it asks for encoder_decoder or recurrent; what the config does not set is that of "
            "runs/bert (train.init_from)": build(source=9, target=9),
            "start from another run than runs/bert (train.init_from)": build(text=9),
        }
    )


# --- Sizes by the size of the data ---


CONFIG = ROOT / "configs" / "parallel_text.py"


def pairs(count, words=5):
    """Pairs of random-looking words; the more pairs, the more words."""
    word = lambda i: f"{'abcdefghij'[i % 10]}{i * 7919 % (2 * count)}"  # noqa: E731
    line = lambda i: " ".join(word(i * words + j) for j in range(words))  # noqa: E731
    return [{"source": line(i), "target": line(i + 1).upper()} for i in range(count)]


def sizes_of(settings):
    return {name: settings.values[name] for name in SCALED}


@pytest.mark.parametrize(
    ("kind", "count"), [("bpe", 2), ("bpe", 300), ("byte_bpe", 300), ("word", 300)]
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


def test_a_run_saves_the_sizes_that_it_starts_with(tiny_config, tmp_path, fitted):
    changes = {"train.scale_to_data": True, "train.num_steps": 15, "optimizer.warmup_steps": 50}
    run = tj.train(tiny_config(changes), tmp_path / "run")
    saved = load_json(tmp_path / "run" / "config.json")
    assert sizes_of(saved) == sizes_of(run.settings) and not saved.train.scale_to_data
    assert saved.optimizer.warmup_steps == 1 and saved.tokenizer.vocab_size < 800
    (settings,) = fitted
    assert settings.tokenizer.vocab_size == saved.tokenizer.vocab_size


def test_a_resumed_run_keeps_its_sizes(workdir, tiny_config, fitted, caplog):
    """Its data would be scaled otherwise by this version. More steps are not taken silently."""
    caplog.set_level(logging.INFO)
    saved = load_json(workdir / "config.json")
    run = tj.train(tiny_config({"train.scale_to_data": True, "train.num_steps": 99}), workdir)
    assert f"num_steps stays 30, as all sizes do; --config={workdir}" in caplog.text
    assert sizes_of(run.settings) == sizes_of(saved) == sizes_of(load_json(workdir / "config.json"))
    assert saved.tokenizer.vocab_size == 800
    tj.train(override(saved, {"train.num_steps": 31}), workdir)
    assert [settings.train.num_steps for settings in fitted] == [30, 31]

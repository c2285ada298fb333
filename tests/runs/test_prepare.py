# SPDX-License-Identifier: Apache-2.0
"""Tokenizers of a run: trained, or copied from the run that it starts from."""

import dataclasses

import transformer_jax as tj
from tests.refusals import assert_refused
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.runs import prepare
from transformer_jax.runs.build import vocab_sizes
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.prepare import build_tokenizers
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


def test_a_run_that_starts_from_another_copies_its_tokenizers(
    tiny_config, trained_workdir, tmp_path
):
    settings = read_settings(tiny_config({"train.init_from": str(trained_workdir)}))
    examples = [{"source": "a", "target": "b"}]
    taken = build_tokenizers(settings, tmp_path / "tokenizer", examples)
    origin = build_tokenizers(settings, trained_workdir / "tokenizer", examples)
    assert taken["source"].encode("the dog") == origin["source"].encode("the dog")
    assert (tmp_path / "tokenizer").is_dir()


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


def test_a_mistyped_origin_is_named(tiny_config, tmp_path):
    (tmp_path / "gpt2").mkdir()
    config = tiny_config({"train.init_from": str(tmp_path / "gtp2")})
    message = f"config.train.init_from: {tmp_path}/gtp2 holds no run: config.json is missing; "
    message += f"did you mean {tmp_path}/gpt2?"
    assert_refused({message: lambda: tj.train(config, tmp_path / "run")})

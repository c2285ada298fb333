# SPDX-License-Identifier: Apache-2.0
"""Fixtures: tables of lower case, and tiny tokenizers of each published format, written by their
own libraries."""

import io
import json

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from transformer_jax.tokenization import sentencepiece as training
from transformer_jax.tokenization.published import PublishedTokenizer, import_tokenizer

TEXTS = ["the old man sees a dog .", "a young woman walks home .", "men and women walk ."] * 20
IDS = {"t5": {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}}
IDS["llama"] = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "byte_fallback": True}
IDS["llama"] |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
BERT = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
BERT += ["the", "old", "dog", "walk", "##s", "man", "a", "É", "e"]


def sentencepiece_model(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        model_type="unigram",
        vocab_size=320,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def byte_level(special=()):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def t5(folder):
    (folder / "spiece.model").write_bytes(sentencepiece_model(**IDS["t5"]))


def llama(folder):
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(**IDS["llama"]))


def marian(folder, codes=(">>de<<",)):
    """Marian's files: the vocabulary has all pieces of source.spm, and half of target.spm's."""
    source, target = sentencepiece_model(), sentencepiece_model(character_coverage=1.0)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=source)
    names = [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size())]
    vocab = ["</s>", "<unk>", *codes, *reversed(names), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(vocab)}))


def marian_apart(folder):
    marian(folder)
    vocab = [*json.loads((folder / "vocab.json").read_text())][::-1]
    vocab = {piece: i for i, piece in enumerate(["<extra>", *vocab])}
    (folder / "target_vocab.json").write_text(json.dumps(vocab))


def gpt2(folder):
    model = json.loads(byte_level().to_str())["model"]
    vocab = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")


def bert(folder):
    (folder / "vocab.txt").write_text("\n".join(BERT) + "\n")


def roberta(folder):
    tokenizer = byte_level(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.enable_padding(length=40)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(folder / "tokenizer.json"))


MADE = {"t5": t5, "llama": llama, "marian": marian, "marian_apart": marian_apart}
MADE |= {"gpt2": gpt2, "bert": bert, "roberta": roberta}


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """Function from the name of a format to a folder with its files, which must not be changed."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            MADE[name](made[name])
        return made[name]

    return folder


@pytest.fixture(scope="session")
def tokenizer_of(folder_of):
    """Function that imports and loads a tokenizer: `tokenizer_of(name, side="text", **ids)`."""

    def tokenizer(name, side="text", rows=None, **ids):
        return PublishedTokenizer(import_tokenizer(folder_of(name), side, ids, rows))

    return tokenizer


@pytest.fixture(scope="session", autouse=True)
def lowercase_rules(made_once):
    """Makes the table of each normalization once for all tests: it covers Unicode in 5 seconds."""
    make = training._lowercase_rules

    def table(normalization):
        return made_once(f"lowercase_{normalization}.tsv", lambda: make(normalization))

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(training, "_lowercase_rules", table)
        yield

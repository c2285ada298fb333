# SPDX-License-Identifier: Apache-2.0
"""Each format encodes and decodes as its library does, and has the right special tokens."""

import json
import pickle
import shutil

import numpy as np
import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders

from tests.tokenization.conftest import MADE, byte_level
from transformer_jax.tokenization import Frame
from transformer_jax.tokenization.published import PublishedTokenizer, import_tokenizer
from transformer_jax.tokenization.subword_sampling import UnigramSampling

EACH = pytest.mark.parametrize("name", MADE)
LINES = ["the old man walks", "A dog  sees\tÉva .", "", " ", "日本 👩‍🚀 \ud83d", "walk."]


@EACH
@pytest.mark.parametrize("side", ["source", "target"])
def test_every_format_implements_the_tokenizer_interface(tokenizer_of, name, side):
    tokenizer = tokenizer_of(name, side)
    specials, size = tokenizer.specials, tokenizer.vocab_size
    ids = tokenizer.encode("the old dog walks")
    assert tokenizer.decode([*specials.ids, *ids, specials.eos]) == "the old dog walks"
    assert tokenizer.starts_word([*ids, specials.eos, ids[-1]])[:1] == [True]
    words = tokenizer.encode_words(["old", "dog", "walks"])
    assert [token for word in words for token in word] == tokenizer.encode("old dog walks")
    starts = [[True, *[False] * (len(word) - 1)] for word in words]
    assert tokenizer.starts_word(sum(words, [])) == sum(starts, [])
    assert len(tokenizer.pieces(range(size))) == size and size > max(specials.ids)
    assert specials.eos not in specials.banned and specials.pad in {*specials.banned, specials.eos}
    for line in LINES:
        found = tokenizer.encode(line)
        assert tokenizer.count_unknown(found) == found.count(specials.unk)
        assert all(0 <= i < size for i in found)
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode(LINES[1]) == tokenizer.encode(LINES[1])
    assert again.specials == specials


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_words_begin_where_they_do_though_a_letter_is_byte_level_bpes_space(
    folder_of, tokenizer_of, tmp_path, name
):
    """Vocabularies of Maltese have Ġ."""
    shutil.copytree(folder_of(name), tmp_path, dirs_exist_ok=True)
    if name == "bert":
        with (tmp_path / "vocab.txt").open("a") as file:
            file.write("Ġ\n")
    else:
        vocab = json.loads((tmp_path / "vocab.json").read_text())
        (tmp_path / "vocab.json").write_text(json.dumps(vocab | {"Ġ": len(vocab)}))
    tokenizer = PublishedTokenizer(import_tokenizer(tmp_path, "source"))
    ids = tokenizer_of(name, "source").encode("the old dog walks")
    assert tokenizer.starts_word(ids) == tokenizer_of(name, "source").starts_word(ids)


@pytest.mark.parametrize("decoder", [None, decoders.Sequence([decoders.ByteLevel()])])
def test_words_of_byte_level_bpe_begin_at_spaces_whatever_decodes_it(tmp_path, decoder):
    tokenizer = byte_level(["</s>"])
    content = json.loads(tokenizer.to_str())
    content["decoder"] = decoder and json.loads(decoder.__getstate__())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    published = PublishedTokenizer(import_tokenizer(tmp_path, "text"))
    ids = [published.encode(text)[0] for text in ("x", "a", " man", "\n")]
    assert published.starts_word([ids[0], *ids]) == [True, False, False, True, True]


@EACH
def test_the_original_files_are_kept_byte_for_byte(folder_of, tokenizer_of, name):
    folder = folder_of(name)
    assert tokenizer_of(name).files == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_t5_has_sentinels_after_its_pieces(folder_of, tokenizer_of):
    tokenizer = tokenizer_of("t5", rows=400)
    model = sentencepiece.SentencePieceProcessor(str(folder_of("t5") / "spiece.model"))
    for line in (LINES[0], LINES[1]):
        assert tokenizer.encode(line) == model.encode(line)
    count = model.get_piece_size()
    first = tokenizer.encode("the <extra_id_0> dog<extra_id_99></s>")
    assert first == [*model.encode("the"), count + 99, *model.encode("dog"), count, 1]
    s = tokenizer.specials
    assert (s.pad, s.eos, s.unk, s.start, s.first, s.mask) == (0, 1, 2, 0, 1, None)
    assert s.translation == Frame((), (1,), (1,))
    assert tokenizer.vocab_size == 400 and s.unused == tuple(range(count + 100, 400))
    assert tokenizer.decode([*model.encode("dog"), 399]) == "dog" and 399 in s.banned
    assert count + 99 in s.ids and count + 99 not in s.banned


def test_llama_begins_running_text_with_bos(folder_of, tokenizer_of):
    tokenizer = tokenizer_of("llama")
    model = sentencepiece.SentencePieceProcessor(str(folder_of("llama") / "tokenizer.model"))
    assert tokenizer.encode("日 dog") == model.encode("日 dog")
    s = tokenizer.specials
    assert (s.unk, s.first, s.start, s.eos, s.pad) == (0, 1, 1, 2, 2)


def test_marian_maps_the_pieces_of_each_side_to_its_own_ids(folder_of, tokenizer_of):
    vocab = json.loads((folder_of("marian") / "vocab.json").read_text())
    source, target = tokenizer_of("marian", "source"), tokenizer_of("marian", "target")
    model = sentencepiece.SentencePieceProcessor(str(folder_of("marian") / "source.spm"))
    pieces = model.encode("the old dog 日", out_type=str)
    expected = [vocab.get(piece, 1) for piece in pieces]
    assert source.encode("the old dog 日") == expected and source.count_unknown(expected) == 1
    assert source.encode(">>de<< the") == [2, *source.encode("the")]
    assert source.encode(">>xx<< the") == [1, *source.encode("the")]
    s = target.specials
    assert (s.pad, s.start, s.eos, s.unk) == (len(vocab) - 1, len(vocab) - 1, 0, 1)
    assert s.translation == Frame((), (0,), (0,)) and 2 in s.ids
    apart = tokenizer_of("marian_apart", "target")
    assert apart.vocab_size == len(vocab) + 1 and apart.specials.pad == 1
    assert tokenizer_of("marian_apart", "source").vocab_size == len(vocab)


def test_gpt2_has_a_single_special_token(tokenizer_of):
    tokenizer = tokenizer_of("gpt2")
    s, last = tokenizer.specials, tokenizer.vocab_size - 1
    assert {s.pad, s.eos, s.start, s.first} == s.ids == {last} and s.unk is None
    assert s.banned == () and tokenizer.encode("a<|endoftext|>")[-1] == last
    for line in LINES[:-2]:
        assert tokenizer.decode(tokenizer.encode(line)) == line


def test_bert_normalizes_text_by_its_settings(folder_of, tokenizer_of, tmp_path):
    tokenizer = tokenizer_of("bert")
    assert tokenizer.pieces(tokenizer.encode("The É [MASK] walks")) == [
        "the",
        "e",
        "[MASK]",
        "walk",
        "##s",
    ]
    s = tokenizer.specials
    assert (s.pad, s.unk, s.eos, s.mask) == (0, 2, 4, 5)
    assert s.encoder == Frame((3,), (4,), (4,))
    cased = shutil.copytree(folder_of("bert"), tmp_path / "cased")
    (cased / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    cased = PublishedTokenizer(import_tokenizer(cased, "text"))
    assert cased.pieces(cased.encode("The É")) == ["[UNK]", "É"]
    (tmp_path / "cased/tokenizer_config.json").write_text('{"strip_accents": false}')
    accents = PublishedTokenizer(import_tokenizer(tmp_path / "cased/vocab.txt", "text"))
    assert accents.pieces(accents.encode("The É")) == ["the", "[UNK]"]
    with (tmp_path / "cased/vocab.txt").open("a") as file:
        file.write("A\nThe\n")
    (tmp_path / "cased/tokenizer_config.json").unlink()
    google = PublishedTokenizer(import_tokenizer(tmp_path / "cased", "text"))
    assert google.pieces(google.encode("The É")) == ["The", "É"]


def test_tokenizer_json_is_used_unchanged_without_its_padding(folder_of, tokenizer_of):
    tokenizer = tokenizer_of("roberta")
    library = tokenizers.Tokenizer.from_file(str(folder_of("roberta") / "tokenizer.json"))
    library.no_padding()
    library.no_truncation()
    text = "the old <mask> walks home."
    assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
    s = tokenizer.specials
    assert s.encoder == s.translation == Frame((0,), (2,), (2, 2))
    frame = [library.encode("dog").ids, library.encode("dog", "man").ids]
    dog, man = tokenizer.encode("dog"), tokenizer.encode("man")
    assert frame == [s.encoder.around(dog), s.encoder.around(dog, man)]
    assert tokenizer.pieces([s.mask]) == ["<mask>"]
    # The decoder's first input is the head, so a target does not repeat it.
    assert tokenizer_of("roberta", "target").specials.translation.head == ()
    assert tokenizer_of("roberta", "target", start=2).specials.translation.head == (0,)


@EACH
def test_sampling_gives_other_tokens_of_the_same_text(tokenizer_of, name):
    tokenizer = tokenizer_of(name)
    draw = tokenizer.resegmenter
    if draw is None:
        assert name.startswith("bert")
        return
    ids = tokenizer.encode("the old man walks </s> a dog")
    never = 1e6 if isinstance(draw.segmenter, UnigramSampling) else 0.0
    assert draw(ids, never, np.random.default_rng(0)) == ids
    rates = (0.01, 0.5, 1.0)
    drawn = [draw(ids, rate, np.random.default_rng(0)) for rate in rates]
    assert {tokenizer.decode(one) for one in drawn} == {tokenizer.decode(ids)}
    assert "marian" in name or drawn != [ids] * len(rates)  # all its pieces are characters

# SPDX-License-Identifier: Apache-2.0
"""Importing published tokenizers: roles of special tokens, errors in one line, and storage."""

import json
import random
import shutil

import pytest

from tests.tokenization.conftest import MADE, byte_level
from transformer_jax.errors import UserError
from transformer_jax.tokenization import (
    Frame,
    TokenizerConfig,
    copy_tokenizers,
    expected_sizes,
    store_tokenizers,
    train_tokenizers,
)
from transformer_jax.tokenization.published import PublishedTokenizer, import_tokenizer


@pytest.fixture
def copy_of(folder_of, tmp_path):
    return lambda name: shutil.copytree(folder_of(name), tmp_path / name)


def test_given_ids_override_settings_files_which_override_usual_pieces(copy_of):
    folder = copy_of("gpt2")
    vocab = json.loads((folder / "vocab.json").read_text())
    (folder / "special_tokens_map.json").write_text('{"eos_token": {"content": "!"}}')
    (folder / "tokenizer_config.json").write_text('{"pad_token": "#", "bos_token": null}')
    specials = PublishedTokenizer(import_tokenizer(folder, "text")).specials
    assert (specials.eos, specials.pad) == (vocab["!"], vocab["#"])
    given = {"eos": 7, "start": 8, "first": 9, "mask": 3, "head": (4, 5), "tail": [7, 6]}
    source = PublishedTokenizer(import_tokenizer(folder, "source", given)).specials
    assert (source.eos, source.start, source.first, source.mask) == (7, 8, 9, 3)
    assert source.translation == Frame((4, 5), (7, 6), (7,)) and source.pad == vocab["#"]
    assert {4, 5, 6, 7, 8, 9, 3} <= source.ids


@pytest.mark.parametrize(
    "name, inside", [("roberta", "tokenizer.json"), ("t5", "spiece.model"), ("gpt2", "merges.txt")]
)
def test_a_file_of_a_format_stands_for_its_folder(folder_of, name, inside):
    folder = folder_of(name)
    assert import_tokenizer(folder / inside, "text") == import_tokenizer(folder, "text")


def told(path, **given):
    with pytest.raises(UserError) as found:
        import_tokenizer(path, "text", **given)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_an_unusable_tokenizer_is_reported_in_one_line(copy_of, folder_of, tmp_path):
    assert told(tmp_path / "none").endswith("/none: there is no such file or folder")
    assert "no tokenizer is there; it may be tokenizer.json, a sentencepiece .m" in told(tmp_path)
    assert "has 15 tokens, and the model's table 9" in told(folder_of("bert"), rows=9)
    assert "a special token has id 99; there are 15" in told(folder_of("bert"), ids={"pad": 99})
    lacking = copy_of("bert")
    (lacking / "vocab.txt").write_text("[UNK]\na\n")
    assert "no token ends a text: none is named in the files, or is </s>," in told(lacking)
    (lacking / "vocab.txt").write_text("a\nb\n")
    assert "vocab.txt has no [UNK]" in told(lacking)
    (lacking / "tokenizer_config.json").write_text("[3]")
    told(lacking)
    numbered = tmp_path / "numbered"
    numbered.mkdir()
    model = (folder_of("llama") / "tokenizer.model").read_bytes()
    (numbered / "sentencepiece.bpe.model").write_bytes(model)
    assert "use tokenizer.json" in told(numbered)


@pytest.mark.parametrize("name", MADE)
def test_damaged_files_give_a_tokenizer_or_one_line(copy_of, name):
    folder, rng = copy_of(name), random.Random(0)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        cuts = [whole[: rng.randrange(len(whole))] for _ in range(2)]
        flips = []
        for _ in range(3):
            flipped = bytearray(whole)
            flipped[rng.randrange(len(whole))] = rng.randrange(256)
            flips.append(bytes(flipped))
        for content in (b"", b"{}", b"[]", b"\xff", *cuts, *flips):
            path.write_bytes(content)
            try:
                PublishedTokenizer(import_tokenizer(folder, "source"))
            except UserError as error:
                assert "\n" not in str(error)
        path.write_bytes(whole)


def test_ordinary_pieces_have_no_role_unless_they_are_declared(tmp_path):
    """Qwen3's vocabulary has "<s>" and "<unk>", as pieces of text."""
    tokenizer = byte_level(["<|endoftext|>"])
    tokenizer.add_tokens(["<s>", "<unk>", "<mask>", "<pad>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    specials = PublishedTokenizer(import_tokenizer(tmp_path, "text")).specials
    end = tokenizer.token_to_id("<|endoftext|>")
    assert (specials.eos, specials.pad, specials.first) == (end, end, end)
    assert specials.unk is None and specials.mask is None
    added = {str(tokenizer.token_to_id("<mask>")): {"content": "<mask>", "special": True}}
    settings = {"unk_token": "<unk>", "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    specials = PublishedTokenizer(import_tokenizer(tmp_path, "text")).specials
    assert specials.unk == tokenizer.token_to_id("<unk>")
    assert specials.mask == tokenizer.token_to_id("<mask>")


def test_the_end_of_the_settings_is_an_end_beside_that_of_the_model(copy_of):
    folder = copy_of("gpt2")
    vocab = json.loads((folder / "vocab.json").read_text())
    (folder / "tokenizer_config.json").write_text('{"eos_token": "!"}')
    ids = {"eos": vocab["<|endoftext|>"], "ends": [vocab["<|endoftext|>"], vocab["#"]]}
    specials = PublishedTokenizer(import_tokenizer(folder, "text", ids)).specials
    assert specials.eos == vocab["<|endoftext|>"]
    assert specials.ends == (vocab["#"], vocab["!"])


def test_settings_are_read_refused_or_named(copy_of, caplog):
    folder = copy_of("gpt2")
    path = folder / "tokenizer_config.json"
    path.write_text('{"split_special_tokens": true}')
    assert "split_special_tokens is True; only False is supported" in told(folder)
    path.write_text('{"model_max_length": 9, "reverse_words": true, "errors": "replace"}')
    import_tokenizer(folder, "text")
    assert "unknown keys, which are ignored: ['reverse_words']" in caplog.text
    assert "model_max_length" not in caplog.text
    path.write_text('{"added_tokens_decoder": {"291": {"content": "<|im_end|>"}}}')
    assert "a token '<|im_end|>', and the vocabulary beside them has none" in told(folder)
    path = copy_of("t5") / "tokenizer_config.json"
    for setting, words in (
        ('"mask_token": "<mask_2>"', "'<mask_2>', and the vocabulary beside them has none"),
        ('"do_lower_case": true', "made lower case before; use tokenizer.json"),
    ):
        path.write_text(f"{{{setting}}}")
        assert words in told(path.parent)


PAIR = {"source": ["the dog"], "target": ["the man"]}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_sides_share_a_vocabulary_if_their_files_are_equal(folder_of, tmp_path):
    same = TokenizerConfig("file", path=str(folder_of("t5")))
    joint = train_tokenizers(same, PAIR, tmp_path / "joint")
    assert joint["source"] is joint["target"] and joint.joint
    assert names(tmp_path / "joint") == ["joint.file.json", "sides.json"]
    apart = TokenizerConfig("file", path=str(folder_of("marian_apart")))
    found = train_tokenizers(apart, PAIR, tmp_path / "apart", {"label": ["b", "a"]})
    assert names(tmp_path / "apart")[1:] == ["sides.json", "source.file.json", "target.file.json"]
    for config, trained in ((same, joint), (apart, found)):
        sizes = {side: trained.text(side).vocab_size for side in PAIR}
        assert expected_sizes(config, PAIR) == sizes
    copied = copy_tokenizers(tmp_path / "apart", tmp_path / "copied", {"label": ["c"]})
    assert copied.labels("label").names == ("c",)
    assert copied.text("target").encode("the man") == found.text("target").encode("the man")
    assert copied.sha256["source"] == found.sha256["source"]


def test_an_importer_stores_each_side_with_ids_of_its_own(folder_of, tmp_path):
    contents = {
        "source": import_tokenizer(folder_of("roberta"), "source", {"tail": (2, 7)}, rows=400),
        "target": import_tokenizer(
            folder_of("roberta"), "target", {"start": 2, "head": (8,)}, rows=400
        ),
    }
    found = store_tokenizers("file", contents, tmp_path / "tokenizer")
    assert found.specials("source").translation.around([9]) == [0, 9, 2, 7]
    target = found.specials("target")
    assert (target.start, target.translation.around([9])) == (2, [8, 9, 2])
    assert found.text("source").vocab_size == found.text("target").vocab_size == 400

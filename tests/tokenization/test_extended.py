# SPDX-License-Identifier: Apache-2.0
"""Tokens after those of a vocabulary: [MASK], extra ones, and tags."""

import pickle
from functools import partial

import numpy as np
import pytest

from tests.refusals import assert_refused
from transformer_jax.tokenization import (
    SampledTokenizer,
    TokenizerConfig,
    copy_tokenizers,
    expected_sizes,
    load_tokenizers,
    train_tokenizers,
)
from transformer_jax.tokenization.tokenizer import resegmenter_of

TEXTS = {"text": ["the old man sees a dog", "a dog sees the man", "⟨extra_0⟩ is text"] * 4}
NO_TAGS = ["", "bt", "<bt>,", "<bt>,<bt>", "<b t>", "<>"]


@pytest.mark.parametrize(
    ("kind", "size"), [("bpe", 60), ("byte_bpe", 270), ("word_classes", 20), ("wordpiece", 60)]
)
def test_extra_tokens_follow_the_vocabulary(kind, size, tmp_path):
    config = TokenizerConfig(kind=kind, vocab_size=size, extra_tokens=2)
    folder = tmp_path / "tokenizer"
    train_tokenizers(config, TEXTS, folder, needs_mask=True)
    loaded = pickle.loads(pickle.dumps(load_tokenizers(folder)))
    tokenizer = loaded.text("text")
    base = tokenizer.base
    mask, extra = tokenizer.specials.mask, tokenizer.specials.extra
    added = [*([] if kind == "wordpiece" else [mask]), *extra]
    assert added == [*range(base.vocab_size, tokenizer.vocab_size)]
    assert tokenizer.vocab_size <= expected_sizes(config, TEXTS, needs_mask=True)["text"]
    assert tokenizer.pieces([mask, *extra]) == ["[MASK]", "⟨extra_0⟩", "⟨extra_1⟩"]

    text = "the ⟨extra_0⟩ man"  # text that looks like a token is text
    assert tokenizer.encode(text) == base.encode(text) and max(tokenizer.encode(text)) < extra[0]
    masked = tokenizer.encode("the [MASK] dog")
    assert masked.count(mask) == 1
    assert tokenizer.decode([extra[1], *masked, extra[0]]) == "the dog"
    starts = tokenizer.starts_word([mask, *base.encode("dog"), extra[0]])
    assert starts[0] and starts[1] and starts[-1]
    assert tokenizer.count_unknown([*extra, mask]) == 0
    assert not {mask, *extra} & {*tokenizer.specials.banned}
    if resegmenter_of(tokenizer):
        drawn = SampledTokenizer(tokenizer, 0.5, np.random.default_rng(0)).encode("the [MASK] dog")
        assert drawn.count(mask) == 1 and tokenizer.decode(drawn) == tokenizer.decode(masked)


@pytest.mark.parametrize(
    ("kind", "size", "before"), [("byte_bpe", 280, "the"), ("bpe", 40, "the"), ("char", 40, "the ")]
)
def test_a_mask_has_the_space_of_the_word_that_it_stands_for(kind, size, before, tmp_path):
    """As in training, where it replaces the token "Ġold" of "the old dog"."""
    config = TokenizerConfig(kind, size, normalization="identity")
    tokenizer = train_tokenizers(config, TEXTS, tmp_path / "it", needs_mask=True).text("text")
    base = tokenizer.base
    expected = [*base.encode(before), tokenizer.specials.mask, *base.encode(" dog")]
    assert tokenizer.encode("the [MASK] dog") == expected


@pytest.mark.parametrize(("kind", "size"), [("bpe", 60), ("byte_bpe", 270), ("wordpiece", 60)])
def test_tags_are_spelled_and_leave_the_text_as_it_is(kind, size, tmp_path):
    plain = train_tokenizers(TokenizerConfig(kind, size), TEXTS, tmp_path / "plain").text("text")
    config = TokenizerConfig(kind, size, extra_tokens=1, tags="<bt>,<bt2>")
    tagged_texts = {"text": [f"<bt>{text}" for text in TEXTS["text"]]}
    train_tokenizers(config, tagged_texts, tmp_path / "tagged")
    tokenizer = load_tokenizers(tmp_path / "tagged").text("text")
    first, second = plain.vocab_size + 1, plain.vocab_size + 2
    assert tokenizer.vocab_size == second + 1 <= expected_sizes(config, TEXTS)["text"]
    ids = plain.encode("a dog sees the man")
    assert tokenizer.encode("<bt>a dog sees the man<bt2>") == [first, *ids, second]
    assert tokenizer.encode_plain("<bt>") == plain.encode("<bt>")
    assert tokenizer.pieces([first, second]) == ["<bt>", "<bt2>"]
    assert tokenizer.decode([first, *ids, second]) == plain.decode(ids)
    assert not {first, second} & {*tokenizer.specials.banned}


def test_tags_that_a_copied_vocabulary_lacks_are_refused(tmp_path):
    config = TokenizerConfig("bpe", 60, tags="<bt>")
    train_tokenizers(config, TEXTS, tmp_path / "run", {"label": ["x"]})
    copy = partial(copy_tokenizers, tmp_path / "run", tmp_path / "copy")
    assert_refused({"whose tokens are used, has none for '<2de>'": partial(copy, tags=["<2de>"])})
    assert copy(tags=["<bt>"]).text("text").encode("<bt>") == [60]


def test_tags_that_are_none_are_refused(folder_of, tmp_path):
    refused = {f"tags is {tags!r}": partial(TokenizerConfig, tags=tags) for tags in NO_TAGS}
    taken = TokenizerConfig("file", path=str(folder_of("roberta")), tags="<mask>")
    refused["'<mask>' is a token already"] = partial(
        train_tokenizers, taken, TEXTS, tmp_path / "tokenizer"
    )
    assert_refused(refused)

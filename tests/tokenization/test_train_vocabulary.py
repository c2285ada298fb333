"""Training repeats itself, stays quiet, reads its texts once, and says when there are none."""

import pytest

from transformer_jax.errors import UserError
from transformer_jax.tokenization import TOKENIZERS, TokenizerConfig
from transformer_jax.tokenization.vocabularies import sample_texts, train_vocabulary

TEXTS = ["one two three two one", "two two three", "four one five"]
TRAINED = [name for name, kind in TOKENIZERS.items() if kind.train]
SIZE = {"byte_bpe": 266, "wordpiece": 40}


def vocabulary(kind, texts=TEXTS):
    model = train_vocabulary(TokenizerConfig(kind, SIZE.get(kind, 18)), texts, "joint")
    tokenizer = TOKENIZERS[kind].load(model)
    return tokenizer.pieces(range(tokenizer.vocab_size))


@pytest.mark.parametrize("kind", TRAINED)
def test_same_texts_give_the_same_vocabulary(kind):
    assert vocabulary(kind) == vocabulary(kind)


@pytest.mark.parametrize("kind", TRAINED)
def test_training_prints_nothing(kind, capfd):
    vocabulary(kind)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize("texts", [[], ["", ""]])
def test_nothing_to_learn_from(kind, texts):
    with pytest.raises(UserError, match="joint tokenizer has no text"):
        vocabulary(kind, texts)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_white_space_alone_is_nothing_where_it_is_lost(kind):
    with pytest.raises(UserError, match="joint tokenizer has no text"):
        vocabulary(kind, [" ", "\n"])


@pytest.mark.parametrize("kind", TRAINED)
def test_half_a_surrogate_pair_does_not_stop_a_training(kind):
    assert vocabulary(kind, [*TEXTS, "two \ud83d two"])


def test_an_error_of_the_reader_stays_what_it_was():
    def texts():
        yield "one"
        raise UserError("train.de, line 2: not UTF-8")

    with pytest.raises(UserError, match="line 2"):
        vocabulary("bpe", texts())


def test_small_corpora_are_taken_whole_and_large_ones_sampled_evenly():
    assert sample_texts("abc", 3) == ["a", "b", "c"]
    sample = [int(text) for text in sample_texts(map(str, range(10_000)), 500)]
    assert len(set(sample)) == 500
    assert 4500 < sum(sample) / 500 < 5500  # standard error 129


def test_sampling_is_the_same_in_every_process():
    assert sample_texts("abcdefghij", 3) == ["f", "b", "g"]

# SPDX-License-Identifier: Apache-2.0
"""Language modeling: predictions, metrics of a text, and generation."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from tests.tasks import compiled
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.models import MODELS
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.tasks import language_modeling
from transformer_jax.tokenization.specials import EOS

DOCUMENTS = [{"text": "the old man sees a dog .\n"}, {"text": "men and women walk ."}]
ARCHITECTURE = {"model.architecture": "decoder_only"}


@pytest.fixture(scope="module")
def build(tokenizers_of, task_with):
    def build(kind="char", **fields):
        return task_with(tokenizers_of(kind), "language_modeling", ARCHITECTURE, **fields)

    return build


@pytest.mark.parametrize("packing", ["together", "apart"])
def test_every_token_is_predicted_once(build, params, sums_of, packing):
    """The loss equals the sum over all documents and their end tokens, computed window by
    window."""
    task = build(data__packing=packing)
    sums = sums_of(task, params, DOCUMENTS)
    encode = task.tokenizers["text"].encode
    sizes = [len(encode(document["text"])) for document in DOCUMENTS]
    assert sums["tokens"] == sums["weight"] == sum(sizes) + len(sizes)

    streams = [[EOS, *encode(document["text"]), EOS] for document in DOCUMENTS]
    if packing == "together":
        streams = [[*streams[0], *streams[1][1:]]]
    expected = 0.0
    for stream in streams:
        for start in range(0, len(stream) - 1, 16):
            window = stream[start : start + 17]
            logits = compiled.logits(task, params, *compiled.padded_row(window[:-1], 16))
            log_probs = np.asarray(jax.nn.log_softmax(logits))[0]
            expected -= sum(float(log_probs[i, token]) for i, token in enumerate(window[1:]))
    assert sums["nll"] == pytest.approx(expected, rel=1e-4)


def test_training_windows_start_anywhere(task):
    training, tiles = (task.prepare(DOCUMENTS, training=training) for training in (True, False))
    assert len(training) > 8 * len(tiles)
    np.testing.assert_array_equal(training[1]["input"], training[0]["target"])
    example = task.preprocess(training[3], np.random.default_rng(0))
    np.testing.assert_array_equal(example["input"][1:], example["target"][:-1])
    assert set(example) == set(task.lengths)


def test_training_windows_of_a_long_text_leave_no_token_out(task, monkeypatch):
    monkeypatch.setattr(language_modeling, "MOST_STARTS", 2)
    training, tiles = (task.prepare(DOCUMENTS, training=training) for training in (True, False))
    assert [*map(str, training)] == [*map(str, tiles)]


def test_metrics_per_byte_and_per_word(build):
    task = build("byte_bpe")
    sums = {"loss": 20.0, "tokens": 10.0, "nll": 20.0, "correct": 5.0}
    sums |= {"filled": 10.0, "slots": 16.0}
    metrics = task.metrics(sums, [{"text": "wörter, zwei\n"}])
    assert metrics["perplexity"] == pytest.approx(math.exp(2.0))
    assert metrics["bits_per_byte"] == pytest.approx(20 / math.log(2) / 14)
    assert metrics["word_perplexity"] == pytest.approx(math.exp(20 / 3))  # the line's end is one


@pytest.mark.parametrize(
    ("kind", "text"),
    [("byte_bpe", "the ſtrange  dog\n"), ("wordpiece", "a dog\n"), ("char", "a dög")],
    ids=["all is kept", "no line ends", "an unknown character"],
)
def test_metrics_per_byte_and_per_word_need_a_lossless_tokenizer(build, kind, text):
    task = build(kind)
    sums = dict.fromkeys(("loss", "tokens", "nll", "correct", "filled", "slots"), 1.0)
    metrics = task.metrics(sums, [{"text": "a dog"}, {"text": text}])
    assert ("bits_per_byte" in metrics) == ("word_perplexity" in metrics) == (kind == "byte_bpe")
    assert metrics["perplexity"] == pytest.approx(math.e)


def test_rows_beyond_the_positions_are_refused(build):
    with pytest.raises(UserError, match="positions 'learned' reach to max_length 16, seq"):
        build(data__max_length=32)


def test_logits_that_no_loss_would_read_are_refused(build, with_entries):
    class Louder(DecoderOnly):
        def __call__(self, *inputs, **named):
            return 2 * super().__call__(*inputs, **named)

    with_entries(MODELS, {"louder": Louder})
    with pytest.raises(UserError, match="Louder has a `__call__` of its own, but losses read"):
        build(model__architecture="louder")


DECODE = DecodeConfig(temperature=1.0, max_extra_length=20, num_outputs=2, batch_size=4)


def test_each_line_has_its_own_samples(task, params):
    lines = ["the old", "", "a dog"]
    found = list(task.predict(params, lines, DECODE))
    assert [len(outputs) for outputs in found] == [2, 2, 2]
    for outputs in found:
        assert outputs[0].score >= outputs[1].score
        assert outputs[0].text != outputs[1].text
    again = list(task.predict(params, lines[2:], DECODE, first_line=3))
    assert [output.text for output in again[0]] == [output.text for output in found[2]]


def test_an_output_ends_before_a_stop_text(task, params):
    plain = next(task.predict(params, ["the"], DECODE))[0].text
    stop = plain[3:5]
    decode = DecodeConfig(**{**vars(DECODE), "stop": f"nowhere|{stop}"})
    texts = [output.text for output in next(task.predict(params, ["the"], decode))]
    assert plain[: plain.find(stop)] in texts
    assert not any(stop in text for text in texts)


def test_a_score_goes_up_to_the_stop(task, params):
    """Tokens sampled after it do not count: equal outputs have equal scores."""
    decode = dataclasses.replace(DECODE, num_outputs=4, stop="a|e|o")
    outputs = next(task.predict(params, ["the"], decode))
    scores = {}
    for output in outputs:
        scores.setdefault(output.text, set()).add(output.score)
    highest = math.log(task.model.config.vocab_size)
    assert all(-2 * highest * (len(output.text) + 1) < output.score for output in outputs)
    assert len(scores) > 1


def test_a_stream_is_the_output_piece_by_piece(task, params):
    decode = dataclasses.replace(DECODE, max_extra_length=40, num_outputs=1)
    pieces = list(task.stream(params, "the old", decode))
    (output,) = next(task.predict(params, ["the old"], decode))
    assert len(pieces) > 1 and "".join(pieces) == output.text
    stop = dataclasses.replace(decode, stop=output.text[17:19])
    (stopped,) = next(task.predict(params, ["the old"], stop))
    assert "".join(task.stream(params, "the old", stop)) == stopped.text
    assert len(stopped.text) <= 17


def test_a_prompt_beyond_the_context_says_what_is_kept(task, params, caplog):
    list(task.predict(params, ["a", "the old man sees a dog"], DECODE, first_line=7))
    (told,) = caplog.messages
    assert told.startswith(
        "line 8 has 22 tokens, more than the model sees; it is continued from it"
    )
    assert "its last 8 (data.max_length is 16)" in told


@pytest.mark.parametrize("packing", ["together", "apart"])
def test_num_train_tokens_cuts_the_training_text_alone(build, packing):
    whole, cut = (
        build(data__packing=packing, **more) for more in ({}, {"data__num_train_tokens": 20})
    )
    encode = whole.tokenizers["text"].encode
    first = [*encode(DOCUMENTS[0]["text"]), EOS, *encode(DOCUMENTS[1]["text"]), EOS][:20]
    items = [cut.prepare(DOCUMENTS, training=True)[i] for i in (0, -1)]
    assert items[0]["target"].tolist() == first[:16] and items[-1]["target"][-1] == first[-1]
    assert len(cut.prepare(DOCUMENTS, training=False)) == len(whole.prepare(DOCUMENTS, False)) > 2
    with pytest.raises(UserError, match="num_train_tokens is 999, but the training text has"):
        build(data__num_train_tokens=999).prepare(DOCUMENTS, training=True)


def test_num_train_tokens_is_of_running_text_alone(tiny_config, tiny_language_model):
    with pytest.raises(UserError, match="9, but task.name 'translation' does not read it"):
        tiny_config({"data.num_train_tokens": 9})
    for other in ({"data.weights": "1,2"}, {"data.num_train_examples": 3}):
        with pytest.raises(UserError, match="and num_train_tokens exclude each other"):
            tiny_config(tiny_language_model | other | {"data.num_train_tokens": 9})

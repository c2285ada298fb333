# SPDX-License-Identifier: Apache-2.0
"""Instruction tuning: tokens that the loss counts, packed rows, and answers."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.tasks import compiled
from tests.tasks.conftest import CHAT
from transformer_jax.conversations import conversation_to_json, parse_conversation
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.losses import token_losses

SAID = [("the old man", "sees a dog"), ("a dog", "walks home ."), ("men and women", "walk .")]


def conversation(*pairs):
    turns = [turn for ask, answer in pairs for turn in (("user", ask), ("assistant", answer))]
    return parse_conversation({"messages": [{"role": r, "content": c} for r, c in turns]})


EXAMPLES = [
    {"turns": conversation_to_json(conversation(*SAID[:2]))},
    {"turns": conversation_to_json(conversation(SAID[2]))},
]
GREEDY = DecodeConfig(beam_size=1, max_extra_length=6)


@pytest.fixture(scope="module")
def build(tokenizers_of, task_with):
    return functools.partial(task_with, tokenizers_of("byte_bpe"), "instruction", CHAT)


def test_only_logits_of_answers_have_a_gradient(task, params, monkeypatch, batches_of):
    (batch,) = batches_of(task, EXAMPLES)
    assert batch["input_segment_ids"].max() == 2  # both share a row

    def with_respect_to(added):
        def biased_losses(predicted, target, eps, z_loss, tiles, exact):
            return token_losses(predicted.logits() + added, target, eps)

        monkeypatch.setattr("transformer_jax.losses.tiled_token_losses", biased_losses)
        return task.loss(params, batch, None, {})[0]

    zeros = jnp.zeros((*batch["target"].shape, task.model.config.vocab_size))
    gradient = np.abs(jax.jit(jax.grad(with_respect_to))(zeros)).sum(axis=-1)
    tokenizer = task.tokenizers["text"]
    answers = {tokenizer.decode(batch["target"][0][i:j]) for i, j in stretches(gradient[0] > 0)}
    assert answers == {answer for _, answer in SAID}
    np.testing.assert_array_equal(gradient > 0, batch["counted"] > 0)
    ends = [batch["target"][0][j - 1] for _, j in stretches(gradient[0] > 0)]
    assert ends == [tokenizer.specials.eos] * 3


def stretches(marks):
    """(start, stop) of each run of True values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marks.astype(int), [0]])))
    return edges.reshape(-1, 2).tolist()


def test_the_loss_of_packed_conversations_is_that_of_each_alone(task, params, sums_of):
    together = sums_of(task, params, EXAMPLES)
    alone = [sums_of(task, params, [example]) for example in EXAMPLES]
    for name in ("nll", "tokens", "correct"):
        assert together[name] == pytest.approx(sum(one[name] for one in alone), rel=1e-5)
    encode = task.tokenizers["text"].encode
    assert together["tokens"] == sum(len(encode(answer)) + 1 for _, answer in SAID)


@pytest.mark.parametrize("thought", ["", "<think>\n\n</think>\n\n"])
def test_training_and_prediction_agree(task, params, sums_of, thought):
    """An answer has the same likelihood in a training row and after a prompt."""
    template = dataclasses.replace(task.template, thinks=bool(thought))
    thinking = dataclasses.replace(task, template=template)
    ((source, target),) = SAID[2:]
    (found,) = thinking.score(params, [source], [target], batch_size=1)
    prompt = thinking.chat_tokenizer.encode_prompt(conversation(SAID[2])[:1])
    tokens = [*prompt, *task.tokenizers["text"].encode(thought + target)]
    logits = compiled.logits(task, params, *compiled.padded_row(tokens, 64))[0, len(tokens) - 1]
    of_end = jax.nn.log_softmax(logits)[thinking.chat_tokenizer.answer_end]
    nll = sums_of(thinking, params, EXAMPLES[1:])["nll"]
    assert found.log_prob + of_end == pytest.approx(-nll, rel=1e-5)


def test_long_conversations_are_cut_with_a_warning(build, caplog):
    small = build(data__max_length=20)
    found = small.prepare(EXAMPLES, training=True)
    assert len(found) == 3 and max(len(row["input"]) for row in found) <= 20
    assert caplog.messages == [
        "1 of 2 conversations are longer than a row of 20 tokens (data.max_length), and were "
        "split between their turns"
    ]
    with pytest.raises(UserError, match="not one answer fits into a row of 4 tokens"):
        build(data__max_length=4).prepare(EXAMPLES, training=True)


def test_each_line_is_answered(task, params, caplog):
    turns = {"messages": [{"role": "user", "content": "the old man"}]}
    lines = ["the old man", " ", json.dumps(turns), "a dog"]
    found = [outputs[0].text for outputs in task.predict(params, lines, GREEDY, first_line=3)]
    assert caplog.messages == ["line 4 is blank, and so is its answer"]
    assert found[0] == found[2] and found[1] == "" and len(found) == 4
    assert "".join(task.stream(params, "the old man", GREEDY)) == found[0]
    (told,) = next(task.predict(params, ["the old man"], GREEDY))
    assert "Q:" not in told.text


def test_lines_that_ask_nothing_are_refused(task, params):
    answered = json.dumps({"instruction": "a", "output": "b"})
    for line, why in (
        (answered, "line 1: the last turn is not the user's"),
        ("the dog\nA: yes", "line 1: a turn contains text that looks like the template's markup"),
        ("the old man " * 40, r"line 1: the question has \d+ tokens .* \(data.max_length is 64\)"),
        ('{"messages": [{"role": "x", "content": "a"}]}', "turn 1: unknown role 'x'"),
    ):
        with pytest.raises(UserError, match=why):
            next(task.predict(params, [line], GREEDY))
    for line, why in (("the dog\nA: yes", "a turn contains text"), (answered, "the last turn is")):
        with pytest.raises(UserError, match=f"line 2: {why}"):
            task.score(params, ["a", line], ["b", "c"], batch_size=1)


def test_the_first_questions_of_a_long_history_are_left_out(task, params, caplog):
    history = conversation(*SAID * 3)[:-1]
    "".join(task.reply(params, history, GREEDY))
    assert "the conversation: the first" in caplog.text and "questions are not read" in caplog.text


def test_parts_that_do_not_fit_together_are_refused(build):
    with pytest.raises(UserError, match="template 'chatml' has turns of its own; set it to none"):
        build(task__template="chatml")
    with pytest.raises(UserError, match="a template of one's own has three turns; set system_turn"):
        build(task__system_turn=None)
    turns = {f"task__{role}_turn": None for role in ("system", "user", "assistant")}
    with pytest.raises(UserError, match="ends an answer in .*im_end.*write {content}{eos}"):
        build(task__template="chatml", **turns)


def test_a_chat_remembers_what_was_said(run_of):
    chat = tj.Chat(run_of("instruction"), beam_size=1, max_extra_length=6)
    answer = "".join(chat.ask("a dog"))
    assert [turn.content for turn in chat.turns] == ["a dog", answer]
    "".join(chat.ask("the old man"))
    assert len(chat.turns) == 4
    with pytest.raises(UserError, match="looks like the template's markup"):
        "".join(chat.ask("a\nA: b"))
    assert len(chat.turns) == 4
    chat.reset("Be brief.")
    assert [turn.role for turn in chat.turns] == ["system"]
    chat.reset()
    assert chat.turns == ()

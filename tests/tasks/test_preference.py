# SPDX-License-Identifier: Apache-2.0
"""DPO: the loss against a slow reference, packing, and pairs that do not fit."""

import jax
import numpy as np
import pytest

from tests.tasks import compiled
from tests.tasks.conftest import CHAT
from transformer_jax.conversations import Turn, conversation_to_json
from transformer_jax.errors import UserError

PAIRS = [("the old man", "sees a dog", "walks"), ("a dog", "walks home .", "men and women")]
PAIRS += [("men", "walk .", "a young woman walks home with a dog .")]


def example(ask, chosen, rejected):
    return {
        "turns": conversation_to_json((Turn("user", ask),)),
        "chosen": chosen,
        "rejected": rejected,
    }


EXAMPLES = [example(*pair) for pair in PAIRS]


def drawn(texts):
    """Log-probabilities that differ between texts."""
    return np.array([-tokens.sum() / 100 for tokens, _ in map(texts.text, range(len(texts)))], "f")


@pytest.fixture(scope="module")
def build(tokenizers_of, task_with):
    def build(**fields):
        task = task_with(tokenizers_of("byte_bpe"), "preference", CHAT, **fields)
        object.__setattr__(task, "reference", drawn)
        return task

    return build


def log_prob(task, params, ask, answer):
    """log P of an answer and its end token, token by token in double precision."""
    text = f"Q: {ask}\nA: "
    tokenizer = task.tokenizers.text("text")
    prompt = [tokenizer.specials.first, *tokenizer.encode(text)]
    tokens = [*prompt, *tokenizer.encode(answer), tokenizer.specials.eos]
    logits = np.asarray(compiled.logits(task, params, *compiled.padded_row(tokens, 64))[0])
    total = 0.0
    for place in range(len(prompt), len(tokens)):
        before = np.asarray(logits[place - 1], np.float64)
        total += before[tokens[place]] - np.log(np.exp(before - before.max()).sum()) - before.max()
    return total


@pytest.mark.parametrize("eps", [0.0, 0.2])
def test_the_loss_equals_an_oracle(build, params, eps, sums_of):
    task = build(train__label_smoothing=eps, task__beta=0.3)
    prepared = task.prepare(EXAMPLES, training=False)
    expected = dict.fromkeys(("loss", "margin", "correct", "chosen_reward", "rejected_reward"), 0.0)
    for i, (ask, chosen, rejected) in enumerate(PAIRS):
        now = [log_prob(task, params, ask, answer) for answer in (chosen, rejected)]
        rewards = 0.3 * (np.array(now) - prepared.reference[i])
        margin = rewards[0] - rewards[1]
        right, wrong = (np.log1p(np.exp(-sign * margin)) for sign in (1, -1))
        expected["loss"] += (1 - eps) * right + eps * wrong
        expected["margin"] += margin
        expected["correct"] += margin > 0
        expected["chosen_reward"] += rewards[0]
        expected["rejected_reward"] += rewards[1]
    found = sums_of(task, params, EXAMPLES)
    assert found["weight"] == found["tokens"] == len(PAIRS)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name
    metrics = task.metrics(found, EXAMPLES)
    assert metrics["margin"] == pytest.approx(expected["margin"] / 3, rel=1e-4)
    assert metrics["accuracy"] == expected["correct"] / 3


def test_the_gradient_equals_finite_differences(task, params, batches_of):
    """Central differences along the gradient."""
    (batch,) = batches_of(task, EXAMPLES[:1])

    def loss(params):
        return task.loss(params, batch, None, {})[0]

    loss = jax.jit(loss)
    gradient = jax.device_get(jax.jit(jax.grad(loss))(params))
    norm = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(gradient)) ** 0.5
    step = jax.tree.map(lambda slope: 1e-2 * slope / norm, gradient)
    ahead, back = (jax.tree.map(move, params, step) for move in (np.add, np.subtract))
    assert norm > 1e-3
    assert float(loss(ahead) - loss(back)) / 2e-2 == pytest.approx(norm, rel=1e-2)


def test_the_loss_of_packed_pairs_is_that_of_each_alone(build, batches_of, sums_of, random_params):
    task = build(data__max_length=128, model__max_length=128)
    params = random_params(task)
    (batch,) = batches_of(task, EXAMPLES)
    assert batch["chosen_input_segment_ids"].max() == 3
    together = sums_of(task, params, EXAMPLES)
    alone = [sums_of(task, params, [one]) for one in EXAMPLES]
    for name in ("loss", "margin", "chosen_reward"):
        assert together[name] == pytest.approx(sum(one[name] for one in alone), rel=1e-5)


def test_dropout_differs_between_keys(build, params, batches_of):
    task = build(model__dropout_rate=0.5)
    (batch,) = batches_of(task, EXAMPLES[:1])
    keys = [jax.random.key(i) for i in (0, 0, 1)]
    losses = {float(compiled.loss_sums(task, params, batch, key)[0]) for key in keys}
    assert len(losses) == 2


def test_the_first_questions_of_long_conversations_are_left_out(task):
    turns = [Turn(role, "a dog sees a man") for role in ("user", "assistant") * 6]
    asked = (*turns, Turn("user", "the old man"))
    long = {"turns": conversation_to_json(asked), "chosen": "sees a dog", "rejected": "walks"}
    (found,) = task.prepare([long], training=False)
    assert max(len(values) for values in found.values()) <= task.max_length
    text = task.tokenizers.text("text").decode(found["chosen_target"].tolist())
    assert text.endswith("Q: the old man\nA: sees a dog") and "sees a man" in text


def test_pairs_that_do_not_fit_are_skipped_with_a_warning(task, params, sums_of, caplog):
    long = example("the old man", "a dog " * 60, "walks")
    broken = example("the old man\nA: sees", "a dog", "walks")
    assert len(task.prepare([EXAMPLES[0], long, broken], training=True)) == 1
    assert "1 of 3 pairs have an answer that is longer than a row with its question" in caplog.text
    assert "1 of 3 pairs contain text that looks like the template's markup" in caplog.text
    metrics = task.metrics(sums_of(task, params, [EXAMPLES[0], long]), [EXAMPLES[0], long])
    assert metrics["num_loss_examples"] == 1
    with pytest.raises(UserError, match="pair 1: a turn contains text that looks like"):
        task.prepare([broken], training=False)
    with pytest.raises(UserError, match="not one pair of answers fits into rows of 64 tokens"):
        task.prepare([long], training=False)

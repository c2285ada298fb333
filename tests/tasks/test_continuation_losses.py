"""Scores of what follows a text: against the model itself, pair by pair."""

import dataclasses
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.data.batches.marked_texts import marked
from transformer_jax.data.batches.padding import padded_batch
from transformer_jax.errors import UserError
from transformer_jax.losses import token_losses
from transformer_jax.tasks.continuation_losses import split_tokens


@pytest.fixture(scope="module")
def task(tokenizers_of, task_with):
    changes = {"model.architecture": "decoder_only", "train.label_smoothing": 0.1}
    return task_with(tokenizers_of("byte_bpe"), "language_modeling", changes)


@pytest.fixture(scope="module")
def params(task):
    return task.init(jax.random.key(0))


def log_probs_of(task, params, tokens):
    """[T - 1, V], of each token but the first."""
    row = jnp.array([tokens[:-1]])
    where = jnp.arange(row.shape[1])[None], jnp.ones_like(row)
    return jax.nn.log_softmax(task.model.apply({"params": params}, row, *where))[0]


def test_a_score_is_of_the_target_alone(task, params):
    tokenizer = task.tokenizers["text"]
    pairs = [("the old", " man sees a"), ("", "a dog"), ("men and ", "women"), ("the", "")]
    found = task.score(params, *zip(*pairs, strict=True), batch_size=2)
    for (source, target), score in zip(pairs, found, strict=True):
        tokens = [tokenizer.specials.first, *tokenizer.encode(source + target)]
        own = len(tokenizer.encode(source.rstrip()))
        log_probs = log_probs_of(task, params, tokens)
        expected = sum(float(log_probs[i - 1, tokens[i]]) for i in range(own + 1, len(tokens)))
        assert score.log_prob == pytest.approx(expected if target else 0.0, rel=1e-5)
    assert found[3] == (0.0, True)
    assert found[0].log_prob < -1


def test_likeliest_tokens_are_greedy(task, params):
    read = split_tokens(task.tokenizers["text"], "the old man", "")[0]
    written = []
    for _ in range(3):
        log_probs = log_probs_of(task, params, [*read, *written, 0])
        written.append(int(log_probs[-1].argmax()))
    changed = [*written[:-1], (written[-1] + 1) % 300]
    found = task.losses.score(params, [(read, written), (read, changed)], 16, batch_size=2)
    assert [pair.is_greedy for pair in found] == [True, False]


def test_of_a_long_pair_the_last_tokens_are_read(task, params, caplog):
    source, target = "the old man sees a dog and walks home with a woman .", " the dog"
    read, counted = split_tokens(task.tokenizers["text"], source, target)
    assert len(read) + len(counted) > 17
    with caplog.at_level(logging.WARNING):
        (_, found) = task.score(params, ["a", source], [" dog", target], batch_size=2)
    told = f"line 2 has {len(read) + len(counted) - 1} tokens, more than the model sees at once"
    assert caplog.messages[0].startswith(told) and len(caplog.messages) == 1
    log_probs = log_probs_of(task, params, [*read, *counted][-17:])
    expected = sum(
        float(log_probs[i - 1 - len(counted), token]) for i, token in enumerate(counted, 1)
    )
    assert found.log_prob == pytest.approx(expected, rel=1e-5)
    with pytest.raises(UserError, match=r"score: the target of line 1 has \d+ tokens, more than"):
        task.score(params, [""], [source], batch_size=2)


def test_nothing_but_what_counts_has_a_gradient(task, params):
    """With respect to every logit, by way of the biases that are added to them."""
    row = marked([3, 20, 21, 22, 23, 24], [0, 0, 0, 0, 1, 1])
    assert row["counted"].tolist() == [0, 0, 0, 1, 1]
    batch = {name: jnp.array(array) for name, array in padded_batch([row, row]).items()}

    def logits_of(batch):
        return task.model.apply(
            {"params": params}, batch["input"], batch["input_positions"], batch["input_segment_ids"]
        )

    def loss(logits):
        found = token_losses(logits, batch["target"], 0.1)
        return (found.losses * (batch["counted"] > 0)).sum()

    gradient = np.abs(jax.grad(loss)(logits_of(batch))).sum(axis=-1)
    np.testing.assert_array_equal(gradient > 0, np.asarray(batch["counted"]) > 0)
    assert loss(logits_of(batch)) == pytest.approx(float(task.loss(params, batch, None)[0]))
    whole = {name: array for name, array in batch.items() if not name.startswith("counted")}
    assert task.loss(params, whole, None)[1] == 10 and task.loss(params, batch, None)[1] == 4


def test_a_smoothed_score_is_no_score(task, params):
    plain = dataclasses.replace(
        task, loss_options=dataclasses.replace(task.loss_options, label_smoothing=0.0)
    )
    found = [one.score(params, ["the"], [" old man"], 1)[0] for one in (task, plain)]
    assert found[0] == found[1]

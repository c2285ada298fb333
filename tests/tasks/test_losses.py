# SPDX-License-Identifier: Apache-2.0
"""Losses and scores of the tasks: tiles of the vocabulary, scores of continuations, and R-Drop."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from tests.tasks import compiled
from transformer_jax.errors import UserError
from transformer_jax.nn import auxiliary
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import Origin
from transformer_jax.tasks.losses import split_tokens
from transformer_jax.tasks.teachers import ModelTeacher
from transformer_jax.training.config import TrainConfig

V, ROWS, LENGTH = 45, 3, 12
MODEL = {"d_model": 16, "d_ff": 24, "num_heads": 2, "num_layers": 1, "dtype": "float32"}
MODEL |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
ARCHITECTURES = {
    "translation": "encoder_decoder",
    "language_modeling": "decoder_only",
    "masked_lm": "encoder_only",
}
TASKS = pytest.mark.parametrize("name", ARCHITECTURES)


def task_of(name, tiles, vocab_multiple=1, dtype="float32", teacher=None, train=None, **model):
    given = {
        "task": {"name": name, "mask_rate": 0.5},
        "model": MODEL
        | {"architecture": ARCHITECTURES.get(name, "encoder_only"), "dtype": dtype}
        | {"vocab_multiple": vocab_multiple, **model},
        "data": dict.fromkeys(("max_length", "max_source_length", "max_target_length"), LENGTH),
        "train": {"loss_tiles": tiles} | (train or {}),
    }
    settings = read_settings(given, {}, Origin("loaded run", "test"))
    sizes = dict.fromkeys(("source", "target", "text", "label", "tags"), V)
    return build.build_task(settings, sizes, None, teacher)


def batch_of(task):
    """Rows of two sequences and padding, with labels at some positions."""
    rng, batch = np.random.default_rng(0), {}
    for feature in task.lengths:
        tokens = rng.integers(4, V, (ROWS, LENGTH))
        segments = np.where(np.arange(LENGTH) < 5, 1, 2) * (np.arange(LENGTH) < 10)
        hidden = rng.random(tokens.shape) < 0.4 if feature == "labels" else True
        batch[feature] = np.where((segments > 0) & hidden, tokens, 0).astype(np.int32)
        batch[f"{feature}_segment_ids"] = np.tile(segments, (ROWS, 1)).astype(np.int32)
        positions = np.where(np.arange(LENGTH) < 5, 0, -5) + np.arange(LENGTH)
        batch[f"{feature}_positions"] = np.tile(positions, (ROWS, 1)).astype(np.int32)
    return batch


def logit_dtypes(jaxpr):
    """Dtypes of the products with V columns."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general" and equation.outvars[0].aval.shape[-1] == V:
            yield equation.outvars[0].aval.dtype.name
        for inner in jaxprs_in_params(equation.params):
            yield from logit_dtypes(inner)


@TASKS
def test_logits_are_rounded_in_training_alone(name):
    """On CPUs, where a rounded product is faster; rounded logits are often equal."""
    task = task_of(name, None, dtype="bfloat16")
    params, batch = jax.eval_shape(task.init, jax.random.key(0)), batch_of(task)

    def found(function, *args):
        traced = getattr(function, "trace", jax.make_jaxpr(function))(params, batch, *args)
        return set(logit_dtypes(traced.jaxpr))

    assert found(lambda *args: task.loss(*args, None, {})) == {"float32"}
    assert found(task.loss, jax.random.key(0), {}) == {"bfloat16"}
    if name != "masked_lm":
        assert found(task.scores) == {"float32"}
    if name == "language_modeling":  # preferences compare log-probabilities, in training too
        assert found(task.log_probs, jax.random.key(0)) == {"float32"}


@pytest.mark.parametrize(("name", "tiles"), [("masked_lm", 4), ("classification", 1)])
def test_a_teacher_is_compared_with_in_training(name, tiles):
    """Each token's loss is the formula on the logits of both models, which differ in size."""
    options = {"distillation": {"weight": 0.3, "temperature": 2.0}, "label_smoothing": 0.0}
    teacher = task_of(name, tiles, vocab_multiple=8, d_model=8, num_heads=1, norm="rms")
    train = {"loss": "distillation"} | options
    task = task_of(name, tiles, teacher=ModelTeacher(teacher), train=train, dropout_rate=0.0)
    params, frozen = (drawn_params(one, seed) for seed, one in enumerate((task, teacher)))
    batch = batch_of(task)
    inputs, labels, counted = task.supervised(batch)

    def log_probs(task, params, t):
        z = np.float64(compiled.logits(task, params, *inputs)) / t
        return z - np.log(np.exp(z).sum(-1, keepdims=True))

    log_p = log_probs(task, params, 1.0)
    ce = -np.take_along_axis(log_p, np.asarray(labels)[..., None], -1)[..., 0]
    q, p = log_probs(task, params, 2.0), log_probs(teacher, frozen, 2.0)
    losses = 0.7 * ce + 0.3 * 4 * (np.exp(p) * (p - q)).sum(-1)
    given = jax.random.key(0), {"teacher": frozen}
    found, weight, sums = compiled.loss_sums(task, params, batch, *given)
    assert float(found) == pytest.approx((losses * counted).sum(), rel=1e-5)
    assert float(sums["nll"]) == pytest.approx((ce * counted).sum(), rel=1e-5)
    assert weight == counted.sum()
    plain = task_of(name, tiles, train={"label_smoothing": 0.0}, dropout_rate=0.0)
    assert evaluation_program(task, batch) == evaluation_program(plain, batch)


def test_a_teacher_computes_as_after_its_training():
    """Batch norm has its averages in a student's step too, and nothing is added to the step."""
    task = task_of("classification", 1, norm="batch")
    params, batch = jax.jit(task.init)(jax.random.key(0)), batch_of(task)
    inputs, *_ = task.supervised(batch)

    @jax.jit
    def in_a_step(params):
        with auxiliary.collect() as added:
            logits = ModelTeacher(task).predictions(params, batch, inputs, "__call__")
        assert not added.sums
        return logits

    np.testing.assert_array_equal(in_a_step(params), compiled.logits(task, params, *inputs))


def evaluation_program(task, batch):
    """Text of the lowered loss without dropout."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    return jax.jit(task.loss).lower(params, batch, None, {}).as_text()


def lowered_gradient(task):
    """Lowered (params, batch) -> (gradient of the loss, sums)."""

    def loss(params, batch):
        loss, weight, sums = task.loss(params, batch, None, {})
        return loss, {"loss": loss, "weight": weight, **sums}

    params = jax.eval_shape(task.init, jax.random.key(0))
    return jax.jit(jax.grad(loss, has_aux=True)).lower(params, batch_of(task))


def found_by(task, params):
    fast = {"xla_backend_optimization_level": 0}
    gradient, sums = lowered_gradient(task).compile(fast)(params, batch_of(task))
    assert sums["weight"] > 5
    return gradient, {name: float(value) for name, value in sums.items()}


def drawn_params(task, seed=1):
    rng, shapes = np.random.default_rng(seed), jax.eval_shape(task.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)


@pytest.mark.parametrize(("name", "tiles"), [("language_modeling", 5), ("masked_lm", 4)])
def test_tiles_and_vocabulary_padding_do_not_change_a_loss(name, tiles):
    """The padding has large values, and its gradient is zero."""
    params = drawn_params(task_of(name, 1))
    expected, expected_sums = found_by(task_of(name, 1), params)
    task = task_of(name, tiles, vocab_multiple=32)
    shapes = jax.eval_shape(task.init, jax.random.key(0))

    def pad(leaf, shape, value=0.0):
        widths = [(0, more - size) for more, size in zip(shape.shape, leaf.shape, strict=True)]
        return np.pad(leaf, widths, constant_values=value)

    huge = functools.partial(pad, value=1e4)
    gradient, sums = found_by(task, jax.tree.map(huge, params, shapes))
    assert sums == pytest.approx(expected_sums, rel=1e-6)
    for path, leaf in jax.tree.leaves_with_path(jax.tree.map(pad, expected, shapes)):
        found = functools.reduce(lambda tree, key: tree[key.key], path, gradient)
        atol = 1e-6 * np.abs(leaf).max()
        np.testing.assert_allclose(found, leaf, rtol=1e-5, atol=atol, err_msg=str(path))
        assert not np.any(np.asarray(found)[np.asarray(leaf) == 0])


@pytest.mark.parametrize("name", ["translation", "language_modeling"])
def test_a_search_never_sees_padding_of_the_vocabulary(name):
    model, row = task_of(name, 1, vocab_multiple=32).model, jnp.ones((2, 3), jnp.int32)
    rows = (row, jnp.ones(2, jnp.int32))
    args = (*rows * (2 if name == "translation" else 1), 8)

    def logits(model):
        first, memory, state = model.prefill(*args)
        return first, model.decode_step(row[:, 0], memory, state)[0]

    both = jax.eval_shape(
        lambda key: model.init_with_output(key, method=logits)[0], jax.random.key(0)
    )
    assert [each.shape for each in both] == [(2, V)] * 2


@pytest.mark.parametrize(
    ("name", "tiles"), [*zip(ARCHITECTURES, (5, 5, 5), strict=True), ("language_modeling", 1)]
)
def test_a_tiled_loss_never_holds_all_logits(name, tiles):
    """The largest array with a vocabulary axis is the embedding table."""
    text = lowered_gradient(task_of(name, tiles)).as_text()
    shapes = [list(map(int, found.split("x"))) for found in re.findall(r"<([\dx]+)xf32>", text)]
    largest = max(math.prod(shape) for shape in shapes if V in shape)
    assert (largest > V * MODEL["d_model"]) == (tiles == 1)


@pytest.fixture(scope="module")
def task(tokenizers_of, task_with):
    changes = {"model.architecture": "decoder_only", "train.label_smoothing": 0.1}
    return task_with(tokenizers_of("byte_bpe"), "language_modeling", changes)


def log_probs_of(task, params, tokens):
    """Log-probabilities of each token but the first, [T - 1, V]."""
    row = compiled.padded_row(tokens[:-1], 16)
    return np.asarray(jax.nn.log_softmax(compiled.logits(task, params, *row))[0, : len(tokens) - 1])


def test_a_score_counts_the_target_alone(task, params):
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


def test_a_token_across_the_boundary_counts_whole(task, params):
    tokenizer = task.tokenizers["text"]
    tokens = [tokenizer.specials.first, *tokenizer.encode("the old man")]
    assert tokenizer.pieces(tokens[-1:]) == ["Ġman"]
    (cut,) = task.score(params, ["the old m"], ["an"], batch_size=2)
    log_probs = log_probs_of(task, params, tokens)
    assert cut.log_prob == pytest.approx(float(log_probs[len(tokens) - 2, tokens[-1]]), rel=1e-5)


def test_likeliest_tokens_are_greedy(task, params):
    read = split_tokens(task.tokenizers["text"], "the old man", "")[0]
    written = []
    for _ in range(3):
        log_probs = log_probs_of(task, params, [*read, *written, 0])
        written.append(int(log_probs[-1].argmax()))
    changed = [*written[:-1], (written[-1] + 1) % 300]
    found = task.score_tokens(params, [(read, written), (read, changed)], batch_size=2)
    assert [pair.is_greedy for pair in found] == [True, False]


def test_the_last_tokens_of_a_long_pair_are_read(task, params, caplog):
    source, target = "the old man sees a dog and walks home with a woman .", " the dog"
    read, counted = split_tokens(task.tokenizers["text"], source, target)
    assert len(read) + len(counted) > 17
    (_, found) = task.score(params, ["a", source], [" dog", target], batch_size=2, first_line=513)
    told = f"line 514 has {len(read) + len(counted) - 1} tokens, more than the model sees at once"
    assert caplog.messages[0].startswith(told) and len(caplog.messages) == 1
    log_probs = log_probs_of(task, params, [*read, *counted][-17:])
    expected = sum(
        float(log_probs[i - 1 - len(counted), token]) for i, token in enumerate(counted, 1)
    )
    assert found.log_prob == pytest.approx(expected, rel=1e-5)
    with pytest.raises(UserError, match=r"score: the target of line 513 has \d+ tokens, more th"):
        task.score(params, [""], [source], batch_size=2, first_line=513)


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("name", ["language_modeling", "classification"])
def test_r_drop_is_the_mean_of_two_losses_and_their_divergence(name):
    eps = 0.1
    train = {"r_drop": 4.0, "label_smoothing": eps}
    task = task_of(name, None, train=train, dropout_rate=0.3)
    params, batch, key = drawn_params(task), batch_of(task), jax.random.key(1)
    inputs, labels, counted = task.supervised(
        {feature: np.repeat(rows, 2, axis=0) for feature, rows in batch.items()}
    )
    logits = np.float64(compiled.logits(task, params, *inputs, rng=key))
    right = np.eye(logits.shape[-1])[labels[::2]] * (1 - eps) + eps / logits.shape[-1]
    p, q, counted = softmax(logits[::2]), softmax(logits[1::2]), counted[::2]
    entropy = -(right * (np.log(p) + np.log(q)) / 2).sum(axis=-1)
    apart = (p * np.log(p / q)).sum(axis=-1) + (q * np.log(q / p)).sum(axis=-1)
    assert (apart[counted] > 1e-4).all()  # dropout differs in the two copies of each row
    loss, weight, sums = compiled.loss_sums(task, params, batch, key)
    assert weight == sums["tokens"] == counted.sum()
    assert loss == pytest.approx(((entropy + apart) * counted).sum(), rel=1e-5)  # 4 / 4 of it


@pytest.mark.parametrize("name", ["translation", "classification"])
def test_evaluation_has_no_r_drop(name):
    """It is the same program, and training is another."""

    def programs(alpha):
        task = task_of(name, None, train={"r_drop": alpha})
        given = jax.eval_shape(task.init, jax.random.key(0)), batch_of(task)
        keys = (None, jax.random.key(0))
        return [str(jax.make_jaxpr(task.loss)(*given, key, {})) for key in keys]

    evaluated, trained = zip(programs(4.0), programs(0.0), strict=True)
    assert evaluated[0] == evaluated[1] and trained[0] != trained[1]


def test_r_drop_refuses_tiles():
    with pytest.raises(ValueError, match=r"r_drop is 5\.0, .* loss_tiles is 2; set only one"):
        TrainConfig(r_drop=5.0, loss_tiles=2)

# SPDX-License-Identifier: Apache-2.0
"""Building the parts of a run from its settings."""

import collections
import dataclasses
import functools
import itertools
import json
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import dotted
from tests.refusals import assert_refused
from transformer_jax.data.batches.pipeline import eval_batches, train_batches
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.nn.layer_scan import stack_layers
from transformer_jax.nn.transformer import REMAT, rematerialized_layers
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.tasks import language_modeling
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.tokenization import TokenizerConfig, train_tokenizers
from transformer_jax.training.callbacks import CALLBACKS, Callback

SIZES = {"source": 800, "target": 800}  # those of the tiny run, whose programs are compiled


@pytest.fixture
def task_of(tiny_config):
    def make(vocab_sizes=SIZES, **changes):
        settings = read_settings(tiny_config(dotted(changes)))
        return build.build_task(settings, vocab_sizes, tokenizers=None)

    return make


def test_remat_keeps_the_gradient_and_saves_memory(tiny_config, random_params):
    """Four layers show the saving; scanned layers compile as fast as one."""
    deep = {
        "task.name": "language_modeling",
        "data.name": "text",
        "model.architecture": "decoder_only",
        "model.num_layers": 4,
        "model.scan_layers": True,
        "model.dropout_rate": 0.1,
        "data.max_length": 64,
    }
    task = build.build_task(read_settings(tiny_config(deep)), {"text": 100}, tokenizers=None)
    params = stack_layers(random_params(task))
    batch = {
        name: np.ones(x.shape, x.dtype) for name, x in batch_shapes(task.lengths, rows=8).items()
    }

    def gradients_and_results(params, key):
        """The gradient, and the results of the forward pass that are saved for it, by mode."""
        gradients, saved = {}, {}
        for remat in REMAT:
            with rematerialized_layers(remat):
                loss = functools.partial(
                    jax.vjp, lambda params: task.loss(params, batch, key, {})[0]
                )
                _, saved[remat] = loss(params)
                (gradients[remat],) = saved[remat](np.float32(1))
        return gradients, saved

    key = jax.random.key(0)
    gradients = jax.jit(lambda *args: gradients_and_results(*args)[0])(params, key)
    for remat in ("full", "dots", "offload"):
        jax.tree.map(
            lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5),
            gradients[remat],
            gradients["none"],
        )
    _, saved = jax.eval_shape(gradients_and_results, params, key)
    nbytes = {
        remat: sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(results))
        for remat, results in saved.items()
    }
    assert nbytes["none"] > nbytes["dots"] > nbytes["full"] < 0.6 * nbytes["none"]


def test_remat_is_that_of_the_config(tiny_config, tiny_language_model):
    found = {}
    for remat in ("none", "full"):
        settings = read_settings(tiny_config(tiny_language_model | {"train.remat": remat}))
        task = build.build_task(settings, {"text": 100}, tokenizers=None)
        engine = build.build_engine(settings)
        _, step, init_state = build.build_training(settings, task, engine)
        state = build.abstract_state(settings, init_state, engine.mesh)
        program = jax.make_jaxpr(step)(state, batch_shapes(task.lengths, rows=8))
        found[remat] = len(re.findall(r"(remat2|checkpoint)\[", str(program)))
    assert found["full"] > found["none"]  # the loss has one of its own


def test_offload_requires_host_memory(tiny_config, task_of, monkeypatch):
    monkeypatch.setattr(build, "HOST", "paper")
    settings = read_settings(tiny_config({"train.remat": "offload"}))
    with pytest.raises(UserError, match="'offload' keeps results in paper memory; cpu has device"):
        build.build_training(settings, task_of(), build.build_engine(settings))


def test_a_task_has_the_sizes_of_its_sections(task_of):
    task = task_of(
        vocab_sizes={"source": 30, "target": 20},
        model__tie_embeddings="target",
        data__max_source_length=24,
        train__label_smoothing=0.3,
    )
    assert task.lengths == {"source": 24, "target": 48}
    assert task.loss_options.label_smoothing == 0.3
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert shapes["source_embedding"]["table"].shape == (30, 16)
    assert shapes["target_embedding"]["table"].shape == (20, 16)


def test_what_no_tokenizer_or_vocabulary_can_do_is_refused(tiny_config, task_of, tmp_path):
    sides = dict.fromkeys(("source", "target"), ["the old man sees a dog"] * 9)
    wordpiece = TokenizerConfig("wordpiece", vocab_size=60)
    tokenizers = train_tokenizers(wordpiece, sides, tmp_path / "tokenizer")
    sampling = read_settings(tiny_config(SAMPLED))

    def build_sampling_task():
        build.build_task(sampling, build.vocab_sizes(tokenizers), tokenizers)

    unlike = {"source": 30, "target": 20}
    assert_refused(
        {
            "vocabulary of side 'source', and there is none among targ": lambda: task_of(
                {"target": 800}
            ),
            "config.model: tie_embeddings 'all' needs": lambda: task_of(unlike),
            "sampling: the tokenizer ": build_sampling_task,
        }
    )


def test_the_first_state_is_that_of_the_seed(tiny_config, task_of):
    settings = read_settings(tiny_config())
    _, _, init_state = build.build_training(settings, task_of(), build.build_engine(settings))
    init = jax.jit(init_state)
    first, again, other = init(0), init(0), init(1)
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert (first.rng != other.rng).any()
    kernels = [leaf for leaf in jax.tree.leaves(first.params) if leaf.ndim > 1]
    others = [leaf for leaf in jax.tree.leaves(other.params) if leaf.ndim > 1]
    assert all((a != b).all() for a, b in zip(kernels, others, strict=True))
    assert first.step == 0


def test_the_gradient_norm_is_that_of_what_is_trained(tiny_config):
    settings = read_settings(tiny_config({"optimizer.frozen": "bias"}))
    task = SimpleNamespace(
        lengths={"text": 16},
        init=lambda key: {"kernel": jnp.full((4, 4), 2.0), "bias": jnp.full(9, 5.0)},
        loss=lambda params, batch, rng, frozen: (
            sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(params)),
            jnp.float32(1),
            {},
        ),
    )
    _, step, init_state = build.build_training(settings, task, build.build_engine(settings))
    _, sums = jax.jit(step)(init_state(0), jnp.zeros((4, 2)))
    assert sums["grad_norm"] == 4 * 4


def test_only_process_0_calls_back_unless_the_callback_says_so(
    with_entries, monkeypatch, tiny_config, tmp_path
):
    class Everywhere(Callback):
        every_process = True

    with_entries(CALLBACKS, {"main": Callback, "everywhere": Everywhere})
    settings = read_settings(tiny_config({"train.callbacks": "main,everywhere"}))
    for process, classes in enumerate([[Callback, Everywhere], [Everywhere]]):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        callbacks = build.build_callbacks(settings, None, tmp_path)
        assert [type(callback) for callback in callbacks] == classes
        assert callbacks[0].run.workdir == tmp_path


SAMPLED = {"tokenizer.sampling": 0.3, "tokenizer.kind": "bpe", "tokenizer.vocab_size": 200}


@pytest.fixture(scope="module", params=["translation", "together", "apart", "blocks", "weights"])
def sampled(request, tiny, tiny_config, tiny_language_model, tmp_path_factory):
    """Settings with `tokenizer.sampling`, the task and the training examples."""
    files = {"data.train_text": f"{tiny['data.train_source']},{tiny['data.train_target']}"}
    changes = {
        "translation": SAMPLED | {"tokenizer.vocab_size": 800},
        "together": tiny_language_model | SAMPLED | {"data.packing": "together"},
        "apart": tiny_language_model | SAMPLED,
        "blocks": tiny_language_model | SAMPLED | {"data.block_megabytes": 0.002},
        "weights": tiny_language_model | SAMPLED | files | {"data.weights": "3,1"},
    }[request.param]
    settings = read_settings(tiny_config(changes))
    examples = open_split(settings.data, "train")
    folder = tmp_path_factory.mktemp(request.param) / "tokenizer"
    tokenizers = build_tokenizers(settings, folder, examples)
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    return settings, task, examples


def taken(batches, count):
    found = [{name: values.copy() for name, values in next(batches).items()} for _ in range(count)]
    return jax.tree.map(lambda *each: np.stack(each), *found)


def read_batches(settings, task, examples, count=6, state=None, **data):
    """Batches from a saved state on, and the state after them."""
    settings = dataclasses.replace(settings, data=dataclasses.replace(settings.data, **data))
    batches = build.batches_of(settings, task, examples, rows=8)
    if state:
        batches.set_state(json.loads(json.dumps(state)))
    found = taken(batches, count), batches.get_state()
    batches.close()
    return found


def test_sampled_tokens_are_the_same_after_a_resume(sampled, monkeypatch):
    monkeypatch.setattr(language_modeling, "SAMPLED_BLOCK", 500)
    whole, _ = read_batches(*sampled)
    first, state = read_batches(*sampled, count=2)
    rest, _ = read_batches(*sampled, count=4, state=state)
    both = jax.tree.map(lambda *parts: np.concatenate(parts), first, rest)
    jax.tree.map(np.testing.assert_array_equal, whole, both)


@pytest.mark.parametrize("sampled", ["apart"], indirect=True)
def test_sampled_tokens_are_the_same_with_a_worker(sampled):
    alone, _ = read_batches(*sampled)
    by_a_worker, _ = read_batches(*sampled, num_workers=1)
    jax.tree.map(np.testing.assert_array_equal, alone, by_a_worker)


def test_sampling_draws_new_tokens_of_the_same_text_in_each_epoch(sampled):
    settings, task, examples = sampled
    feature = task.read[-1]
    tokenizer = [*task.tokenizers.sides.values()][-1]
    words = {word for example in examples for text in example.values() for word in text.split()}
    found, _ = read_batches(*sampled, count=24)
    tokens_of = collections.defaultdict(set)
    for rows, segments in zip(found[feature], found[f"{feature}_segment_ids"], strict=True):
        for row, i in itertools.product(range(len(rows)), range(1, segments.max() + 1)):
            tokens = rows[row][segments[row] == i]
            tokens_of[tokenizer.decode(tokens)].add(tokens.tobytes())
    assert {word for text in tokens_of for word in text.split()[1:-1]} <= words  # no cut ones
    if settings.data.packing != "together":  # where windows begin anywhere
        assert max(map(len, tokens_of.values())) > 2


def test_evaluation_and_a_rate_of_0_use_the_usual_tokens(sampled):
    settings, task, examples = sampled
    off = dataclasses.replace(settings.tokenizer, sampling=0.0)
    usual = dataclasses.replace(task, tokenizers=dataclasses.replace(task.tokenizers, sampling=0.0))
    few = open_split(settings.data, "valid")[:20]
    batches = [
        eval_batches(one.prepare(few, training=False), one.preprocess, lengths=one.lengths, rows=8)
        for one in (task, usual)
    ]
    jax.tree.map(np.testing.assert_array_equal, *(taken(iter(one), 1) for one in batches))
    unsampled, _ = read_batches(dataclasses.replace(settings, tokenizer=off), usual, examples)
    items, seed = usual.prepare(examples, training=True), settings.order_seed
    plain = train_batches(items, usual.preprocess, lengths=usual.lengths, rows=8, seed=seed)
    jax.tree.map(np.testing.assert_array_equal, unsampled, taken(plain, 6))


def test_shares_of_masks_follow_schedules_of_the_registry(tiny_config):
    def rates(**changes):
        changes = {f"task.{name}": value for name, value in changes.items()}
        masked = {"task.name": "masked_lm", "task.mask_rate": 0.3, "task.final_mask_rate": 0.1}
        return build.mask_rates(read_settings(tiny_config(masked | changes)).task, num_steps=5)

    np.testing.assert_allclose(rates(), [0.3, 0.25, 0.2, 0.15, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rates(mask_schedule="wsd"), [0.3, 0.3, 0.3, 0.3, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rates(final_mask_rate=0.5)[[0, -1]], [0.3, 0.5], rtol=1e-6)

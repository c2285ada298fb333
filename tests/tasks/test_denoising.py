# SPDX-License-Identifier: Apache-2.0
"""Denoising with encoder-decoders and decoders: rows, no leaks, refusals."""

import contextlib
import dataclasses
from functools import partial

import jax
import numpy as np
import pytest

from experiments.generation_cache import UncachedModel
from tests.refusals import assert_refused
from tests.tasks import compiled
from transformer_jax.data.batches.pipeline import eval_batches, train_batches
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.models import apply_model
from transformer_jax.tasks.corruptions import SourceTarget
from transformer_jax.tasks.denoising import whole_text
from transformer_jax.tasks.language_modeling import LanguageModeling
from transformer_jax.tasks.masked_lm import MaskedLanguageModeling
from transformer_jax.tasks.teachers import target_rows
from transformer_jax.tokenization import TokenizerConfig, train_tokenizers

TEXT = {"text": "the old man sees a dog .\nthe dog sees the old man .\n"}
DECODER = {"model.architecture": "decoder_only", "model.max_length": 64}
PREFIX = DECODER | {"model.attention_layer": "prefix"}
PAIRS = {"model.max_length": 64}


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    config = TokenizerConfig("byte_bpe", vocab_size=280, extra_tokens=16)
    texts = {"text": [TEXT["text"]]}
    return train_tokenizers(config, texts, tmp_path_factory.mktemp("tokenizer"), {}, True)


@pytest.fixture(scope="module")
def build(tokenizers, task_with):
    def build(objective, changes=PAIRS, of=tokenizers):
        return task_with(of, "denoising", {"task.objective": objective} | changes)

    return build


def first_batch(task, rows=2):
    items = task.prepare([TEXT], training=False)
    batches = eval_batches(items, task.preprocess, lengths=task.lengths, rows=rows)
    assert batches.overlong == 0
    return batches[0]


@pytest.mark.parametrize("objective", ["prefix_lm", "spans", "infilling", "ul2"])
def test_a_decoder_reads_the_source_and_learns_the_target(build, objective, tokenizers):
    pairs, sequences = build(objective), build(objective, DECODER)
    item = pairs.prepare([TEXT], training=False)[0]
    rng = np.random.default_rng
    pair = pairs.preprocess(item, rng(3))
    row = sequences.preprocess(item, rng(3))
    specials = tokenizers.specials("text")
    source = pair["source"][:-1].tolist()  # without its end token
    assert row["input"].tolist() == [*source, specials.start, *pair["target"][:-1]]
    counted = row["counted"] > 0
    assert row["target"][counted].tolist() == pair["target"].tolist()
    assert counted.tolist() == [False] * len(source) + [True] * len(pair["target"])


def test_the_loss_is_the_cross_entropy_of_the_targets(build, random_params):
    task = build("spans", PREFIX)
    params = random_params(task)
    batch = first_batch(task)
    loss, weight, sums = compiled.loss_sums(task, params, batch)
    assert weight == sums["tokens"] == batch["counted"].sum() > 0
    rows = [batch[name] for name in ("input", "input_positions", "input_segment_ids")]
    log_probs = jax.nn.log_softmax(compiled.logits(task, params, *rows))
    of_target = np.take_along_axis(np.asarray(log_probs), batch["target"][..., None], 2)[..., 0]
    assert loss == pytest.approx(-of_target[batch["counted"] > 0].sum(), rel=1e-4)


def influence(task, params, tokens, segment_ids=None):
    """Whether the logits after token i depend on token j, bool [T, T]."""
    tokens = jax.numpy.asarray(tokens)[None]
    ids = np.ones_like(tokens) if segment_ids is None else np.asarray(segment_ids)[None]

    @jax.jit
    def changed(j, other):
        return apply_model(task.model, params, tokens.at[0, j].set(other), None, ids)[0]

    plain = changed(0, tokens[0, 0])
    rows = [
        np.abs(changed(j, tokens[0, j] + 1) - plain).max(axis=1) > 0 for j in range(tokens.size)
    ]
    return np.array(rows).T


def test_a_prefix_sees_itself_and_nothing_of_the_target(build, random_params, tokenizers):
    task = build("prefix_lm", PREFIX)
    start = tokenizers.specials("text").start
    # Two sentences with prefixes of 3 and 2 tokens, and one without a start token.
    tokens = [20, 21, start, 22, 23, 24, start, 25, start, 26, 27]
    segments = [1, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    sees = np.tril(np.ones((11, 11), bool))
    sees[:3, :3] = sees[5:7, 5:7] = True
    sees &= np.equal.outer(segments, segments)
    not_start = np.array(tokens) != start  # another token in its place moves the prefix
    found = influence(task, random_params(task), tokens, segments)
    assert (found[:, not_start] == sees[:, not_start]).all()


def test_cached_steps_after_a_prefix_equal_the_full_pass(build, random_params):
    task = build("prefix_lm", PREFIX)
    params = random_params(task)
    decode = DecodeConfig(temperature=1.0, max_extra_length=8, batch_size=4)
    lines = ["the old man", "a dog sees"]
    plain = dataclasses.replace(task.token_generator, model=UncachedModel(task.model))
    cached = [o[0] for o in task.predict(params, lines, decode)]
    vars(task)["token_generator"] = plain
    full = [o[0] for o in task.predict(params, lines, decode)]
    assert [o.text for o in cached] == [o.text for o in full]
    np.testing.assert_allclose([o.score for o in cached], [o.score for o in full], rtol=1e-4)


def test_scores_are_the_losses_of_source_and_target(build, random_params, tokenizers):
    task = build("prefix_lm", PREFIX)
    params = random_params(task)
    (score,) = task.score(params, ["the old man"], [" sees a dog"], 1)
    encode = tokenizers.text("text").encode
    source = [*encode("the old man"), tokenizers.specials("text").start]
    target = encode(" sees a dog")
    row = compiled.padded_row([*source, *target], 32)
    log_probs = np.asarray(jax.nn.log_softmax(compiled.logits(task, params, *row)))[0]
    places = len(source) - 1 + np.arange(len(target))
    assert score.log_prob == pytest.approx(log_probs[places, target].sum(), rel=1e-4)
    read = task.model_inputs(params, "the old man", " sees a dog", DecodeConfig())
    assert read.tokens["decoder"] == [*source, *target]


@pytest.mark.parametrize("objective", ["spans", "infilling", "ul2", "diffusion"])
def test_corruptions_are_drawn_by_the_place_in_the_order(build, objective):
    encoder = {"model.architecture": "encoder_only"}
    task = build(objective, encoder if objective == "diffusion" else PAIRS)
    items = task.prepare([TEXT], training=True)

    def batches():
        return train_batches(items, task.preprocess, lengths=task.lengths, rows=8, seed=1)

    with contextlib.closing(batches()) as plain, contextlib.closing(batches()) as resumed:
        before = next(plain)
        resumed.set_state(plain.get_state())
        after = next(plain)
        jax.tree.map(np.testing.assert_array_equal, next(resumed), after)
        assert any((before[name] != after[name]).any() for name in before)


def test_pairs_fill_the_blanks_of_a_line(build, random_params, tokenizers):
    task = build("spans")
    extra = tokenizers.specials("text").extra
    encode = tokenizers.text("text").encode
    target = [extra[0], *encode("old man"), extra[1], *encode("dog"), extra[2], 3, 0]
    assert task._decode([], np.array(target)) == "old man\tdog\t"
    decode = DecodeConfig(beam_size=1, max_extra_length=4)
    ((filled,),) = task.predict(random_params(task), ["the [MASK] sees a [MASK] ."], decode)
    assert filled.text.startswith("the ") and "[MASK]" not in filled.text.split(" sees a ")[0]


def test_short_names_of_two_objectives(build):
    assert type(build("causal", DECODER)) is LanguageModeling
    masked = build("masked", {"model.architecture": "encoder_only", "task.mask_rate": 0.3})
    assert type(masked) is MaskedLanguageModeling and masked.config.mask_rate == 0.3


def test_a_prefix_ends_with_the_start_token_alone(build):
    """Some vocabularies end documents with the start token."""
    task = build("prefix_lm", PREFIX)
    start = task.tokenizers.specials("text").start
    pair = SourceTarget(np.array([5, start, 6]), np.array([7, start]))
    task = dataclasses.replace(task, corruption=lambda tokens, rng: pair)
    row = task.preprocess({"input": np.array([5]), "target": np.array([5, 6])}, None)
    assert row["input"].tolist() == [5, 6, start, 7, start]


def test_the_end_of_a_document_is_not_part_of_its_text():
    """Source and target end by tokens of their own."""
    window = {"input": np.array([1, 5, 6, 7]), "target": np.array([5, 6, 7, 1])}
    assert whole_text(window, end=1).tolist() == [5, 6, 7]
    assert whole_text({key: ids[:2] for key, ids in window.items()}, end=6).tolist() == [5, 6]


@pytest.mark.parametrize("objective", ["diffusion", "infilling"])
def test_a_tokenizer_without_a_mask_is_refused(task_with, tokenizers_of, objective):
    models = {"diffusion": "encoder_only", "infilling": "encoder_decoder"}
    changes = {"task.objective": objective, "model.architecture": models[objective]}
    with pytest.raises(UserError, match="asks for a tokenizer with .MASK."):
        task_with(tokenizers_of("char"), "denoising", changes)


def test_what_an_objective_cannot_have_is_refused_by_name(build, task_with, tokenizers):
    encoder = {"model.architecture": "encoder_only"}
    both_ways = DECODER | {"model.attention_layer": "bidirectional"}
    short = {"task.spans.rate": 0.5, "task.spans.mean_length": 1.0}
    refused = {
        "'spans' does not go with architecture 'encoder_only'; it asks for": ("spans", encoder),
        "'causal' does not go with architecture 'encoder_decoder'": ("causal",),
        "'masked' does not go with architecture 'decoder_only'": ("masked", DECODER),
        "needs 33 extra tokens for texts of 64 tokens, and the tokenizer has 16": (
            *("spans", PAIRS | {"data.max_length": 64} | short),
        ),
        "spans.mean_length is 17, and a text has 16 tokens": (
            *("spans", PAIRS | {"task.spans.mean_length": 17.0}),
        ),
        "rate is 0": ("spans", PAIRS | {"task.spans.rate": 0.0}),
        "rate is 1": ("infilling", PAIRS | {"task.infilling.rate": 1.0}),
        "objective is 'span', not one of": ("span",),
        "'bidirectional' sees the tokens that task denoising predicts": ("spans", both_ways),
        "there is no config.task.spans.rate": ("prefix_lm", PAIRS | {"task.spans.rate": 0.3}),
    }
    calls = {words: partial(build, *arguments) for words, arguments in refused.items()}
    causal = partial(task_with, tokenizers, "language_modeling", both_ways)
    sees = "'bidirectional' sees the tokens that task language_modeling predicts"
    task = build("prefix_lm", PAIRS | {"data.packing": "apart"})
    stored = partial(target_rows, task, task.prepare([TEXT], training=True))
    assert_refused(calls | {sees: causal, "draws at random; leave it out": stored})

# SPDX-License-Identifier: Apache-2.0
"""Ensembles: searches and losses equal averages, by hand, of the members' forward passes."""

import functools

import jax
import numpy as np
import pytest

from tests.compiled import run
from tests.lab.analysis.drawn import draw
from tests.refusals import assert_refused
from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.generation import Output, TokenGenerator
from transformer_jax.inference.seq2seq_search import Request, Seq2SeqSearch
from transformer_jax.losses import LossOptions
from transformer_jax.models.ensemble import EnsembleModel, average_logits
from transformer_jax.tasks.base import CausalTask, Seq2SeqTask
from transformer_jax.tokenization import DEFAULT_SPECIALS as SPECIALS
from transformer_jax.tokenization import Tokenizers

SOURCE, PROMPT = [7, 8, 9, SPECIALS.eos], [SPECIALS.first, 8, 3, 10]
SHALLOW = dict.fromkeys(("num_layers", "num_encoder_layers", "num_decoder_layers"), 1)
DECODE = DecodeConfig(beam_size=1, alpha=0.0, max_extra_length=3, batch_size=1)
NO_TEXT = Tokenizers({})
LOSS = LossOptions(label_smoothing=0.1, loss_tiles=None, r_drop=0.0, z_loss=0.0)


@pytest.fixture(scope="module")
def translators(random_params):
    """Encoder-decoders: one is deeper and has other positions, heads and widths."""
    other = dict(positions="learned", max_length=40, num_heads=4, d_model=8, num_decoder_layers=2)
    return [draw(random_params, "encoder_decoder", **SHALLOW | changes) for changes in ({}, other)]


@pytest.fixture(scope="module")
def generators(random_params):
    """Decoders: one is deeper, the other has rotary positions."""
    return [
        draw(random_params, "decoder_only", **SHALLOW | changes)
        for changes in ({"num_layers": 2}, {"positions": "rotary", "d_ff": 16})
    ]


def ensemble_of(members):
    return EnsembleModel([each.model for each in members]), tuple(each.params for each in members)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, rows):
    return model.apply({"params": params}, **rows)


def probabilities(members, **tokens):
    """Mean of the members' probabilities after each position of an example, [T, V]. The last
    feature is padded, which no position before sees, so that all lengths use one program."""
    rows = {name: np.array([row]) for name, row in tokens.items()}
    *_, last = rows
    length = rows[last].shape[1]
    rows[last] = np.pad(rows[last], ((0, 0), (0, 12 - length)))
    logits = (np.float64(logits_of(each.model, each.params, rows)[0]) for each in members)
    exponentials = [np.exp(each[:length]) for each in logits]
    return np.mean([each / each.sum(axis=1, keepdims=True) for each in exponentials], axis=0)


def log_prob(found, labels):
    return np.log(found[np.arange(len(labels)), labels]).sum()


def likeliest(found):
    """The token that greedy search chooses after each position."""
    found = found.copy()
    found[:, SPECIALS.banned] = 0
    return found.argmax(axis=1).tolist()


def search(members, **changes):
    model, params = ensemble_of(members)
    decode = DecodeConfig(**{**vars(DECODE), **changes})
    return Seq2SeqSearch(model, SPECIALS)(params, [Request(SOURCE)], decode)


def test_translations_score_as_averaged_by_hand(translators):
    tokens, scores = search(translators, beam_size=3, num_outputs=3)
    for row, score in zip(tokens[0], scores[0], strict=True):
        output = row[row != SPECIALS.pad]
        target = [SPECIALS.start, *output[:-1]]
        found = probabilities(translators, source=SOURCE, target=target)
        assert score == pytest.approx(log_prob(found, output), rel=1e-5)


def test_continuations_score_as_averaged_by_hand(generators):
    model, params = ensemble_of(generators)
    generator, output = TokenGenerator(model, 16, SPECIALS), Output(PROMPT, 0, 0)
    for _ in generator.generate(params, [output], DecodeConfig(beam_size=1, max_extra_length=6)):
        pass
    found = probabilities(generators, tokens=[*PROMPT, *output.tokens[:-1]])[len(PROMPT) - 1 :]
    assert output.tokens == likeliest(found)
    assert output.log_prob == pytest.approx(log_prob(found, output.tokens), rel=1e-5)


def test_losses_are_those_of_the_averaged_probabilities(translators, generators):
    model, params = ensemble_of(translators)
    pair = {"source": SOURCE, "target": [5, 6, SPECIALS.eos]}
    found = probabilities(translators, source=SOURCE, target=[SPECIALS.start, 5, 6])
    (scored,) = Seq2SeqTask(model, NO_TEXT, 16, 16, LOSS).score_tokens(params, [pair], 1)
    assert scored.log_prob == pytest.approx(log_prob(found, pair["target"]), rel=1e-5)

    model, params = ensemble_of(generators)
    batch = padded_batch([{"input": PROMPT, "target": [*PROMPT[1:], 4]}])
    loss, _, sums = run(CausalTask(model, NO_TEXT, 16, LOSS).loss, params, batch, None, {})
    found = probabilities(generators, tokens=PROMPT)
    nll = -log_prob(found, [*PROMPT[1:], 4])
    assert sums["nll"] == pytest.approx(nll, rel=1e-5)
    assert loss == pytest.approx(0.9 * nll - 0.1 * np.log(found).mean(axis=1).sum(), rel=1e-5)


def test_an_ensemble_of_one_is_exactly_its_member():
    logits = np.ones((1, 3, 11))
    assert average_logits([logits]) is logits


def test_positions_are_those_of_all_members_and_memory_is_their_sum(translators):
    model, params = ensemble_of(translators)
    assert model.state_bytes(9) == sum(each.model.state_bytes(9) for each in translators)
    encode = functools.partial(model.apply, {"params": params}, np.array([SOURCE]), method="encode")
    search_far = functools.partial(search, translators, max_extra_length=50)
    words = ("positions 'learned' reach to max_length 40", "an ensemble has no method 'encode'")
    assert_refused(dict(zip(words, (search_far, encode), strict=True)))


def test_a_token_that_no_member_predicts_stays_impossible():
    found = average_logits([np.array([-np.inf, 0.0, 0.0]), np.array([-np.inf, 1.0, -np.inf])])
    np.testing.assert_allclose(np.exp(found), [0, 0.75, 0.25], rtol=1e-6)

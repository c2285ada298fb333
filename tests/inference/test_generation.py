# SPDX-License-Identifier: Apache-2.0
"""Text generation: equal with and without a cache, alone and in a batch."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.generation_cache import UncachedModel
from tests.models.texts import small_config
from tests.refusals import assert_refused
from transformer_jax.decoding import Sampler
from transformer_jax.errors import UserError
from transformer_jax.inference.config import CONSTRAINTS, SEARCHES, DecodeConfig
from transformer_jax.inference.generation import Output, TokenGenerator
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.tokenization import SymbolTokenizer
from transformer_jax.tokenization.specials import BOS, DEFAULT_SPECIALS, EOS, PAD, UNK

CONTEXT = 8
CONFIG = small_config(positions="learned", max_length=CONTEXT, vocab_size=12)
PROMPTS = [[EOS, 5, 6, 7], [EOS], [EOS, 4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6]]  # the last is too long
SAMPLED = DecodeConfig(temperature=1.0, max_extra_length=21, seed=3)
GREEDY = DecodeConfig(beam_size=1, max_extra_length=21)
PENALIZED = dataclasses.replace(SAMPLED, repetition_penalty=1.2, top_k=5)


@pytest.fixture(scope="module")
def model():
    return DecoderOnly(CONFIG)


@pytest.fixture(scope="module")
def params(model, random_params):
    row = jnp.ones((1, 1), jnp.int32)
    params = random_params(model, row, row, row)["params"]
    # The end of text is made unlikely, so that outputs grow beyond the context.
    table = np.array(params["embedding"]["table"])
    return {**params, "embedding": {"table": table * (np.arange(12) != EOS)[:, None]}}


def generated(generator, params, prompts, decode, first=0):
    outputs = [Output(prompt, first + i, 0) for i, prompt in enumerate(prompts)]
    for _ in generator.generate(params, outputs, decode):
        pass
    return outputs


@pytest.fixture(scope="module")
def draw(model, params):
    engines = {
        cached: TokenGenerator(decoder, CONTEXT, DEFAULT_SPECIALS)
        for cached, decoder in ((True, model), (False, UncachedModel(model)))
    }
    return lambda prompts, decode, cached=True, **options: generated(
        engines[cached], params, prompts, decode, **options
    )


@pytest.fixture(scope="module")
def logits_of(model, params):
    """(tokens, positions, segment ids) -> logits of a forward pass."""
    return jax.jit(lambda *rows: model.apply({"params": params}, *rows))


def oracle(logits_of, prompt, number, decode):
    """Reference: runs the whole model for every token."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(decode.seed), number), 0)
    tokens, context, log_prob = [], list(prompt), 0.0
    for step in range(decode.max_extra_length):
        if len(context) > CONTEXT:
            context = context[-(CONTEXT // 2) :]
        row = np.zeros((1, CONTEXT), np.int32)
        row[0, : len(context)] = context
        places = np.arange(CONTEXT)[None]
        logits = logits_of(row, places, (places < len(context)).astype(np.int32))[
            0, len(context) - 1
        ]
        allowed = np.array(logits)
        if decode.repetition_penalty != 1:
            for token in {*prompt, *tokens} - {EOS}:  # EOS begins each prompt
                penalty = decode.repetition_penalty
                allowed[token] *= 1 / penalty if allowed[token] > 0 else penalty
        allowed[[PAD, UNK, BOS]] = -np.inf
        if decode.top_k:
            allowed[allowed < np.sort(allowed)[-decode.top_k]] = -np.inf
        drawn = jax.random.categorical(jax.random.fold_in(key, step), jnp.array(allowed))
        chosen = int(drawn)
        log_prob += float(jax.nn.log_softmax(logits)[chosen])
        tokens.append(chosen)
        context.append(chosen)
        if chosen == EOS:
            break
    return tokens, log_prob


@pytest.mark.parametrize(
    ("decode", "cached"),
    [(SAMPLED, True), (PENALIZED, True), (PENALIZED, False)],
    ids=["sampled", "penalized", "uncached"],
)
def test_generation_equals_the_reference(draw, logits_of, decode, cached):
    """One prompt is longer than the context, and outputs are far longer. `interop/test_generation`
    compares greedy outputs with those of transformers."""
    outputs = draw(PROMPTS, decode, cached)
    for number, output in enumerate(outputs):
        tokens, log_prob = oracle(logits_of, PROMPTS[number], number, decode)
        assert output.tokens == tokens
        assert output.log_prob == pytest.approx(log_prob, abs=1e-3)
    assert max(len(output.tokens) for output in outputs) > CONTEXT + CONTEXT // 2


@pytest.mark.parametrize("count", [1, 4])
def test_a_complete_output_is_not_extended(draw, model, params, count):
    """Tokens after the one that completes it are dropped, with their probabilities."""

    class Completing(TokenGenerator):
        def complete_length(self, output, stops):
            return count if output.number == 1 and len(output.tokens) >= count else None

    outputs = generated(Completing(model, CONTEXT, DEFAULT_SPECIALS), params, PROMPTS, SAMPLED)
    whole = draw(PROMPTS, SAMPLED)
    assert [outputs[i].tokens for i in (0, 2)] == [whole[i].tokens for i in (0, 2)]
    assert outputs[1].tokens == whole[1].tokens[:count]
    assert outputs[1].log_probs == pytest.approx(whole[1].log_probs[:count])
    assert all(output.ended for output in outputs)


def test_no_token_is_generated_if_the_limit_is_zero(draw):
    for output in draw(PROMPTS, dataclasses.replace(SAMPLED, max_extra_length=0)):
        assert output.ended and output.tokens == [] and output.log_prob == 0


def test_an_end_token_that_begins_a_prompt_is_no_repetition(model, params):
    """The penalty applies to other tokens of the prompt, but not to its first end token."""
    table = np.array(params["embedding"]["table"])
    generator = TokenGenerator(model, CONTEXT, DEFAULT_SPECIALS)

    def first_token(likeliest, penalty):
        is_likeliest = np.arange(12)[:, None] == likeliest
        favoring = np.where(is_likeliest, 3 * np.sign(table[5]), 0.01 * table)
        decode = dataclasses.replace(GREEDY, max_extra_length=1, repetition_penalty=penalty)
        changed = {**params, "embedding": {"table": favoring}}
        prompt = list(dict.fromkeys((EOS, likeliest)))
        return generated(generator, changed, [prompt], decode)[0].tokens[0]

    assert first_token(EOS, 1.0) == first_token(EOS, 1e3) == EOS
    assert first_token(5, 1.0) == 5 != first_token(5, 1e3)


def test_the_end_token_may_also_be_the_padding(model, params, draw):
    """It is in GPT-2's vocabulary. Outputs end at different lengths, and each keeps its end
    token."""
    fills = dataclasses.replace(DEFAULT_SPECIALS, pad=EOS, unused=(PAD,))
    generator = TokenGenerator(model, CONTEXT, fills)
    outputs, expected = [], []
    for first in range(0, 12, 3):
        outputs += generated(generator, params, PROMPTS, SAMPLED, first)
        expected += draw(PROMPTS, SAMPLED, first=first)
    assert outputs == expected
    ended = [output for output in outputs if output.tokens[-1] == EOS]
    assert len({len(output.tokens) for output in ended}) > 1
    assert all(len(output.tokens) == len(output.log_probs) for output in outputs)


def test_a_search_that_cannot_pause_is_refused(draw):
    for decode in (DecodeConfig(), DecodeConfig(search="beam", beam_size=1)):
        call = functools.partial(draw, PROMPTS, decode)
        assert_refused({"decode: language models generate token by token: set": call})
    named = draw(PROMPTS, dataclasses.replace(GREEDY, search="greedy"))
    assert named == draw(PROMPTS, GREEDY)


# --- Constraints and states of searches ---


@dataclasses.dataclass(frozen=True)
class Sevens:
    """Every third token is 7; the state is the number of tokens so far."""

    vocab_size: int

    def begin(self, tokens, counts, limits):
        return jnp.zeros_like(counts)

    def allowed(self, state):
        is_seven = jnp.arange(self.vocab_size) == 7
        may_end = jnp.arange(self.vocab_size) == EOS
        return (is_seven == (state % 3 == 2)[:, None]) & ~may_end

    def advance(self, state, tokens):
        return state + 1, tokens


@dataclasses.dataclass(frozen=True)
class Echo(Sampler):
    """Repeats the token of two steps before, if any; its state is the last two tokens."""

    def begin_search_state(self, start):
        return jnp.zeros((len(start.logits), 2), jnp.int32)

    def choose(self, samples, logits, hidden):
        best, search_state = super().choose(samples, logits, hidden)
        chosen = jnp.where(search_state[:, 0] > 0, search_state[:, 0], best)
        return chosen, jnp.stack([search_state[:, 1], chosen], axis=1)


def test_constraints_and_states_continue_when_the_context_moves(model, params, with_entries):
    """An output of three contexts."""
    with_entries(CONSTRAINTS, {"sevens": lambda decode, tokenizer: Sevens(tokenizer.vocab_size)})
    tokenizer = SymbolTokenizer("abcdefgh")
    generator = TokenGenerator(model, CONTEXT, DEFAULT_SPECIALS, tokenizer=tokenizer)
    long = dataclasses.replace(GREEDY, max_extra_length=3 * CONTEXT, constraint="sevens")
    for output in generated(generator, params, PROMPTS, long):
        sevens = [token == 7 for token in output.tokens]
        assert sevens == [i % 3 == 2 for i in range(len(sevens))] and len(sevens) > 2 * CONTEXT
    with pytest.raises(UserError, match="constrained outputs cannot be drafted"):
        generated(generator, params, PROMPTS, dataclasses.replace(long, draft="lookup"))

    with_entries(SEARCHES, {"echo": lambda decode, ids: Echo(1.0, 1, None, **ids)})
    echo = DecodeConfig(search="echo", max_extra_length=3 * CONTEXT)
    for output in generated(generator, params, PROMPTS, echo):
        assert output.tokens[2:] == output.tokens[:-2]


@dataclasses.dataclass(frozen=True)
class Nearest(Sampler):
    """Chooses the token whose hidden state the model's is nearest to, by the output matrix."""

    needs_hidden: ClassVar[bool] = True
    table: tuple = ()

    def choose(self, samples, logits, hidden):
        products = hidden @ jnp.array(self.table).T
        return super().choose(samples, products, hidden)


def test_a_search_reads_hidden_states(model, params, with_entries, draw):
    """Products of hidden states and the output matrix are the logits."""
    table = tuple(map(tuple, np.array(params["embedding"]["table"]).tolist()))
    kind = {"nearest": lambda decode, ids: Nearest(1.0, 1, None, table=table, **ids)}
    with_entries(SEARCHES, kind)
    near = dataclasses.replace(GREEDY, search="nearest")
    found = [output.tokens for output in draw(PROMPTS, near)]
    assert found == [output.tokens for output in draw(PROMPTS, GREEDY)]

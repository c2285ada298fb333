# SPDX-License-Identifier: Apache-2.0
"""Drafts: greedy outputs equal those of the model alone, and what a lookup proposes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.compiled import run
from tests.models.texts import small_config
from tests.refusals import assert_refused
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.draft import Drafted, DraftedModel, Lookup
from transformer_jax.inference.generation import Output, TokenGenerator
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.tokenization.specials import DEFAULT_SPECIALS, EOS

CONTEXT = 16
CONFIG = small_config(positions="learned", max_length=CONTEXT, vocab_size=12)
PROMPTS = [[EOS, 5, 6, 7], [EOS], [EOS, 4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 4, 5, 6, 4, 5, 6]]


@pytest.fixture(scope="module")
def pair(random_params):
    """A model and a smaller one, with parameters."""
    row = jnp.ones((1, 1), jnp.int32)
    models = DecoderOnly(CONFIG), DecoderOnly(dataclasses.replace(CONFIG, d_ff=8))
    each = [random_params(model, row, row, row)["params"] for model in models]
    return models, each


def generate(model, params, decode, prompts=PROMPTS, kind=TokenGenerator):
    outputs = [Output(prompt, i, 0) for i, prompt in enumerate(prompts)]
    for _ in kind(model, CONTEXT, DEFAULT_SPECIALS).generate(params, outputs, decode):
        pass
    return outputs


@pytest.mark.parametrize(
    ("draft", "options"), [("smaller", {"repetition_penalty": 1.3}), ("lookup", {})]
)
def test_a_language_model_generates_the_same_tokens(pair, draft, options):
    """Also beyond the context, where the prompt is read again."""
    (model, smaller), (params, smaller_params) = pair
    decode = DecodeConfig(beam_size=1, max_extra_length=26, **options)
    expected = generate(model, params, decode)
    drafts = {"smaller": (smaller, smaller_params), "lookup": (Lookup(12), {})}
    other, other_params = drafts[draft]
    drafted = DraftedModel(model, other, 3)
    found = generate(drafted, Drafted(params, other_params), decode)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-5)
    num_tokens = sum(len(output.tokens) for output in found)
    assert drafted.num_tokens <= num_tokens <= drafted.num_tokens + 8 * len(found)


def test_logits_of_whole_texts_are_those_of_the_model(pair):
    """Of which an evaluation with a draft has its loss."""
    (model, smaller), (params, smaller_params) = pair
    row = jnp.array([[EOS, 5, 6]])
    inputs = row, jnp.arange(3)[None], jnp.ones_like(row)
    drafted = DraftedModel(model, smaller, 3)
    found = run(drafted.apply, {"params": Drafted(params, smaller_params)}, *inputs)
    np.testing.assert_array_equal(found, run(model.apply, {"params": params}, *inputs))


def test_samples_end_at_a_complete_text_and_depend_on_their_numbers_alone(pair):
    """With a draft that is the model itself, whose proposals are accepted."""
    (model, _), (params, _) = pair
    drafted, both = DraftedModel(model, model, 3), Drafted(params, params)

    class FiveTokens(TokenGenerator):
        def complete_length(self, output, stops):
            return 5 if len(output.tokens) >= 5 else None

    decode = DecodeConfig(temperature=1.0, max_extra_length=30, seed=5)
    found = generate(drafted, both, decode)
    assert drafted.acceptance > 0.5
    beside_others = [[EOS, 9], PROMPTS[1], [EOS, 8, 4]]
    again = generate(drafted, both, decode, beside_others, FiveTokens)
    assert again[1].tokens == found[1].tokens[: len(again[1].tokens)]
    assert len(again[1].tokens) == min(5, len(found[1].tokens))


def test_drafts_that_cannot_be_are_refused(pair):
    (model, _), _ = pair
    shorter = DecoderOnly(dataclasses.replace(CONFIG, max_length=8))
    generator = TokenGenerator(DraftedModel(model, shorter, 3), CONTEXT, DEFAULT_SPECIALS)
    config = dataclasses.replace(CONFIG, attention_layer="gated_delta", positions="none")
    recurrent = DecoderOnly(config)
    assert_refused(
        {
            "decode.draft: positions 'learned' reach to": lambda: generator.search(
                DecodeConfig(beam_size=1)
            ),
            "the draft has layers that cannot take back": lambda: DraftedModel(model, recurrent, 3),
            "the model has layers that cannot take back": lambda: DraftedModel(recurrent, model, 3),
        }
    )


def test_the_state_of_the_draft_counts(tiny_config):
    task = build.build_task(
        read_settings(tiny_config({})), {"source": 20, "target": 20}, tokenizers=None
    )
    alone = task.model.state_bytes(13)
    drafted = DraftedModel(task.model, task.model, 3)
    assert drafted.state_bytes(10) == 2 * alone


@jax.jit
def prefill(*texts):
    return Lookup(12).prefill(*texts, 12)


@jax.jit
def read_and_take_back(state):
    _, state = Lookup(12).decode_step(jnp.array([11]), (), state)
    return state.rewind(jnp.array([1])).next_token()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([5, 6, 7, 8, 5, 6, 7], 8),  # the longest match
        ([5, 6, 9, 5, 6, 8, 5, 6], 8),  # of two equally long ones the latest
        ([4, 5, 6, 9, 7, 6, 8, 4, 5, 6], 9),  # three tokens before one
        ([5, 6, 7], 7),  # no match
        ([5], 5),
        ([5, 5, 5], 5),
    ],
)
def test_a_lookup_proposes_what_followed_before(text, expected):
    half = len(text) // 2
    sides = [np.array([text[:half] + [0] * 9])[:, :9], np.array([text[half:] + [0] * 9])[:, :9]]
    lengths = [np.array([half]), np.array([len(text) - half])]
    # A source and a prompt, and the same text token by token after another beginning.
    logits, _, state = prefill(sides[0], lengths[0], sides[1], lengths[1])
    assert int(logits[0].argmax()) == expected
    np.testing.assert_allclose(jax.nn.softmax(logits)[0, expected], 1)
    assert int(read_and_take_back(state)[0]) == expected

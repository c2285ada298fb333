# SPDX-License-Identifier: Apache-2.0
"""Drafts: greedy outputs equal those of the model alone, and what a lookup proposes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.draft import Drafted, DraftedModel, Lookup
from transformer_jax.inference.generation import Output, TokenGenerator
from transformer_jax.inference.seq2seq_search import Request
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.tasks.interface import with_model
from transformer_jax.tokenization.specials import DEFAULT_SPECIALS, EOS

CONTEXT = 16
CONFIG = TransformerConfig(
    d_model=16,
    d_ff=24,
    num_heads=2,
    num_layers=1,
    positions="learned",
    max_length=CONTEXT,
    vocab_size=12,
    dtype="float32",
)
PROMPTS = [[EOS, 5, 6, 7], [EOS], [EOS, 4, 5, 6, 7, 8, 9, 10, 11, 4, 5, 6, 4, 5, 6, 4, 5, 6]]


@pytest.fixture(scope="module")
def pair(random_params):
    """A model and a smaller one, with parameters."""
    row = jnp.ones((1, 1), jnp.int32)
    models = DecoderOnly(CONFIG), DecoderOnly(dataclasses.replace(CONFIG, d_ff=8))
    each = [random_params(model, row, row, row)["params"] for model in models]
    return models, each


def generate(model, params, decode):
    outputs = [Output(prompt, i, 0) for i, prompt in enumerate(PROMPTS)]
    generator = TokenGenerator(model, CONTEXT, DEFAULT_SPECIALS)
    for _ in generator.generate(params, outputs, decode):
        pass
    return outputs


@pytest.mark.parametrize(
    ("draft", "options"),
    [
        ("smaller", {}),
        ("smaller", {"repetition_penalty": 1.3}),
        ("itself", {}),
        ("lookup", {}),
    ],
)
def test_a_language_model_generates_the_same_tokens(pair, draft, options):
    """Also beyond the context, where the prompt is read again."""
    (model, smaller), (params, smaller_params) = pair
    decode = DecodeConfig(beam_size=1, max_extra_length=26, **options)
    expected = generate(model, params, decode)
    drafts = {
        "smaller": (smaller, smaller_params),
        "itself": (model, params),
        "lookup": (Lookup(12), {}),
    }
    other, other_params = drafts[draft]
    drafted = DraftedModel(model, other, 3)
    found = generate(drafted, Drafted(params, other_params), decode)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        np.testing.assert_allclose(ours.log_probs, theirs.log_probs, atol=1e-5)
    num_tokens = sum(len(output.tokens) for output in found)
    assert drafted.num_tokens <= num_tokens <= drafted.num_tokens + 8 * len(found)
    if draft == "itself":
        assert drafted.acceptance > 0.5


def test_samples_end_at_a_complete_text_and_depend_on_their_numbers_alone(pair):
    (model, smaller), (params, smaller_params) = pair
    drafted, both = DraftedModel(model, smaller, 3), Drafted(params, smaller_params)

    def five_tokens(output):
        return 5 if len(output.tokens) >= 5 else None

    decode = DecodeConfig(temperature=1.0, max_extra_length=30, seed=5)
    found = generate(drafted, both, decode)
    alone = [Output(PROMPTS[1], 1, 0)]
    generator = TokenGenerator(drafted, CONTEXT, DEFAULT_SPECIALS)
    for _ in generator.generate(
        both, alone, decode, lambda output: 5 if len(output.tokens) >= 5 else None
    ):
        pass
    assert alone[0].tokens == found[1].tokens[: len(alone[0].tokens)]
    assert len(alone[0].tokens) == min(5, len(found[1].tokens))


def test_a_draft_with_fewer_positions_is_refused(pair):
    (model, _), _ = pair
    shorter = DecoderOnly(dataclasses.replace(CONFIG, max_length=8))
    generator = TokenGenerator(DraftedModel(model, shorter, 3), CONTEXT, DEFAULT_SPECIALS)
    with pytest.raises(UserError, match=r"decode\.draft: positions 'learned' reach to"):
        generator.search(DecodeConfig(beam_size=1))


def test_recurrent_layers_are_refused(pair):
    (model, _), _ = pair
    config = dataclasses.replace(
        CONFIG, attention_layer="gated_delta", positions="none", num_heads=2
    )
    recurrent = DecoderOnly(config)
    with pytest.raises(UserError, match="the draft has recurrent layers"):
        DraftedModel(model, recurrent, 3)
    with pytest.raises(UserError, match="the model has recurrent layers"):
        DraftedModel(recurrent, model, 3)


REQUESTS = [
    Request([7, 8, 9, EOS], number=1),
    Request([5, EOS], number=2),
    Request([9] * 9 + [EOS]),
]


@pytest.mark.parametrize(("draft", "num_outputs"), [("smaller", 2), ("lookup", 1)])
def test_an_encoder_decoder_finds_the_same_tokens(tiny_config, random_params, draft, num_outputs):
    tasks = [
        build.build_task(
            read_settings(tiny_config({"model.num_decoder_layers": layers})),
            {"source": 20, "target": 20},
            tokenizers=None,
        )
        for layers in (1, 2)
    ]
    smaller, task = tasks
    params = random_params(task)
    other, other_params = (
        (smaller.model, random_params(smaller)) if draft == "smaller" else (Lookup(20), {})
    )
    drafted = with_model(task, DraftedModel(task.model, other, 3))
    decode = DecodeConfig(
        search="greedy", max_extra_length=8, batch_size=4, num_outputs=num_outputs
    )
    tokens, scores = task.search(params, REQUESTS, decode)
    found, found_scores = drafted.search(Drafted(params, other_params), REQUESTS, decode)
    np.testing.assert_array_equal(found, tokens)
    np.testing.assert_allclose(found_scores, scores, rtol=1e-5)
    with pytest.raises(UserError, match="greedy search and sampling"):
        drafted.search(Drafted(params, other_params), REQUESTS, DecodeConfig(beam_size=4))


def test_the_state_of_the_draft_counts(tiny_config):
    task = build.build_task(
        read_settings(tiny_config({})), {"source": 20, "target": 20}, tokenizers=None
    )
    alone = task.model.state_bytes(13)
    drafted = DraftedModel(task.model, task.model, 3)
    assert drafted.state_bytes(10) == 2 * alone


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
    lookup = Lookup(12)
    lengths = [np.array([half]), np.array([len(text) - half])]
    # A source and a prompt, and the same text token by token after another beginning.
    logits, _, state = lookup.prefill(sides[0], lengths[0], sides[1], lengths[1], 12)
    assert int(logits[0].argmax()) == expected
    np.testing.assert_allclose(jax.nn.softmax(logits)[0, expected], 1)
    logits, state = lookup.decode_step(jnp.array([11]), (), state)
    state = state.rewind(jnp.array([1]))
    assert int(state.next_token()[0]) == expected

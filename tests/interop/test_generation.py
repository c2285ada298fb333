# SPDX-License-Identifier: Apache-2.0
"""Searches with published weights generate the tokens that `generate` of transformers does."""

import json

import jax
import numpy as np
import pytest

from tests.interop.published import FIXTURES, banned_tokens, expected, published, without_padding
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.generation import Output, TokenGenerator
from transformer_jax.inference.seq2seq_search import Seq2SeqSearch
from transformer_jax.interop.families.base import ReadKeys
from transformer_jax.interop.generation_config import GENERATION, read_generation
from transformer_jax.tokenization import Frame, SpecialTokens

GREEDY = DecodeConfig(beam_size=1, alpha=1.0, length_penalty="power", max_extra_length=12)
BEAM = DecodeConfig(beam_size=4, alpha=1.0, length_penalty="power")
TRANSLATORS, DECODERS = ("marian", "t5"), ("gpt2", "gemma3")
"""Models of which a search is compared. `test_families` compares the logits of all, and
`models/test_parts` decoding with caches with the whole pass for each kind of layer."""


def specials(name):
    """Special tokens of a search, with the tokens banned that the reference suppressed."""
    keys = json.loads((FIXTURES / name / "config.json").read_text())
    eos = keys["eos_token_id"]
    return SpecialTokens(
        pad=eos,
        eos=eos,
        start=keys.get("decoder_start_token_id", eos),
        first=eos,
        translation=Frame((), (eos,)),
        encoder=Frame((), (eos,), (eos,)),
        unused=tuple(banned_tokens(name)),
    )


@pytest.mark.parametrize("name", TRANSLATORS)
def test_translations_are_those_of_transformers(name):
    _, model, params, _ = published(name)
    want, special = expected(name), specials(name)
    limit, source = want["greedy"].shape[1], want["generation_source"]
    rows = len(source)
    arrays = {
        "source": source,
        "source_lengths": want["generation_source_lengths"],
        "prompt": np.full((rows, 1), special.start, np.int32),
        "prompt_lengths": np.ones(rows, np.int32),
        "limits": np.full(rows, limit, np.int32),
        "numbers": np.arange(rows, dtype=np.int32),
    }
    search = Seq2SeqSearch(model, special)
    tokens, scores = jax.tree.leaves(search.compiled(params, arrays, BEAM, limit))
    outputs = []
    for row in np.asarray(tokens)[:, 0].tolist():
        ends = row.index(special.eos) + 1 if special.eos in row else limit
        outputs.append(row[:ends])
    assert outputs == without_padding(want["beam"])
    np.testing.assert_allclose(np.asarray(scores)[:, 0], want["beam_scores"], rtol=1e-4)


@pytest.mark.parametrize("name", DECODERS)
def test_continuations_are_those_of_transformers(name):
    _, model, params, _ = published(name)
    want, special = expected(name), specials(name)
    prompts = [
        row[:n].tolist() for row, n in zip(want["prompt"], want["prompt_lengths"], strict=True)
    ]
    outputs = [Output(prompt, i, 0) for i, prompt in enumerate(prompts)]
    for _ in TokenGenerator(model, 28, special).generate(params, outputs, GREEDY):
        pass
    assert [output.tokens for output in outputs] == without_padding(want["greedy"])


def test_a_repetition_penalty_has_the_effect_that_it_has_in_transformers(tmp_path):
    want = json.loads((FIXTURES / "generations" / "llama.json").read_text())
    settings = {"max_new_tokens": 12, "repetition_penalty": 2}
    (tmp_path / GENERATION).write_text(json.dumps(settings))
    _, model, params, _ = published("llama")
    fields = read_generation(tmp_path, ReadKeys({}), "decoder_only").fields
    decode = DecodeConfig(beam_size=1, **{name[7:]: one for name, one in fields.items()})
    outputs = [Output(prompt, i, 0) for i, prompt in enumerate(want["prompts"])]
    special = specials("llama")
    for _ in TokenGenerator(model, 28, special).generate(params, outputs, decode):
        pass
    found = [output.tokens for output in outputs]
    assert found == want["outputs"]["repetition_penalty 2"]

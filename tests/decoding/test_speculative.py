# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding against plain decoding: the same tokens, and the same distribution."""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.decoding.toy_models import BANNED, BOS, EOS, PAD, MarkovChain
from transformer_jax.decoding import Sampler, Start
from transformer_jax.decoding.interface import can_rewind
from transformer_jax.decoding.speculative import DraftedStep, SpeculativeSampler

IDS = {"eos_id": EOS, "pad_id": PAD, "banned_ids": BANNED}


class Count(NamedTuple):
    """State that only counts the tokens read, to see what was taken back."""

    read: jax.Array

    def rewind(self, counts):
        return Count(self.read - counts)


def two_tables(seed, num_words=3, share=0.0, ends=True):
    """Logits of a Markov chain, and of its draft: a chain that has this share of its logits.
    Without `ends`, outputs never end."""
    chain, other = (
        MarkovChain(each, 1, num_words, 4 + num_words).chains[0] for each in (seed, seed + 100)
    )
    chain[:, EOS] = chain[:, EOS] if ends else -np.inf
    with np.errstate(invalid="ignore"):
        draft = np.where(np.isneginf(chain), chain, share * chain + (1 - share) * other)
    return chain, draft


def steps_of(chain, draft):
    """Decode step of a chain with its draft."""

    def step(tokens, memory, state, table, name):
        width = 1 if tokens.ndim == 1 else tokens.shape[1]
        return jnp.asarray(table)[tokens], {**state, name: Count(state[name].read + width)}

    return DraftedStep(
        functools.partial(step, table=chain, name="model"),
        functools.partial(step, table=draft, name="draft"),
    )


def two_chains(seed, **options):
    """Logits of a Markov chain, and its decode step with a draft, as of `two_tables`."""
    chain, draft = two_tables(seed, **options)
    return chain, steps_of(chain, draft)


def start_of(chain, limits, first=BOS):
    """Inputs of a search with a row for each limit; `first` is the token before each output."""
    limits = np.array(limits, np.int32)
    state = {name: Count(np.zeros_like(limits)) for name in ("model", "draft")}
    logits = np.broadcast_to(chain[first], (len(limits), len(chain)))
    return Start(logits, (), state, limits, jax.random.split(jax.random.key(0), len(limits)))


@functools.cache
def compiled_greedy_search(draft_length):
    """(chain, draft, start) -> hypotheses; a plain search if `draft_length` is None."""
    sampler = Sampler(1.0, top_k=1, top_p=None, **IDS)
    if draft_length is not None:
        sampler = SpeculativeSampler(**vars(sampler), draft_length=draft_length)
    return jax.jit(
        lambda chain, draft, start: sampler.find(
            steps_of(chain, draft), start, num_outputs=1, max_length=12
        )
    )


@pytest.mark.parametrize("draft_length", [1, 4])
@pytest.mark.parametrize("share", [0.0, 0.7, 1.0])
def test_greedy_search_finds_the_tokens_of_plain_search(draft_length, share):
    for seed in range(5):
        chain, draft = two_tables(seed, num_words=8, share=share)
        start = start_of(chain, [1, 2, 5, 9, 12, 12, 12, 12], first=np.arange(4, 12))
        expected = compiled_greedy_search(None)(chain, draft, start)
        found = compiled_greedy_search(draft_length)(chain, draft, start)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


def test_a_perfect_draft_saves_all_steps_but_one_in_five():
    chain, step = two_chains(1, num_words=8, share=1.0, ends=False)
    sampler = SpeculativeSampler(1.0, None, None, **IDS, draft_length=4)
    find = jax.jit(lambda start: sampler.find(step, start, num_outputs=2, max_length=21))
    found = find(start_of(chain, [21] * 3))
    # One token by the prefill, then five by each step; two outputs of each sentence.
    np.testing.assert_array_equal(found.num_steps, [8, 8, 8])
    assert (found.tokens != PAD).all()


OPTIONS = [
    {"temperature": 1.0, "top_k": None, "top_p": None},
    {"temperature": 0.6, "top_k": 3, "top_p": None},
    {"temperature": 1.3, "top_k": None, "top_p": 0.8},
    {"temperature": 1.0, "top_k": None, "top_p": None, "repetition_penalty": 1.5},
]


def allowed_probabilities(logits, seen, options):
    """Probabilities to sample from, by the definitions of the options, one token at a time."""
    logits = logits.astype(np.float64).copy()
    if (penalty := options.get("repetition_penalty", 1)) != 1:
        for token in set(seen):
            logits[token] = (
                logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
            )
    logits[[*BANNED]] = -np.inf
    p = np.exp(logits / options["temperature"])
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = len(p) if options["top_k"] is None else options["top_k"]
    if options["top_p"] is not None:
        kept = 1 + int((np.cumsum(p[order])[:-1] < options["top_p"]).sum())
    p[order[kept:]] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("options", "in_pieces"), [*zip(OPTIONS, (False, False, False, True), strict=True)]
)
def test_outputs_are_as_frequent_as_under_the_model_alone(options, in_pieces):
    length, rows = 4, 20_000
    chain, step = two_chains(7, share=0.5)
    sampler = SpeculativeSampler(**options, **IDS, draft_length=2)
    vocab_size = chain.shape[1]

    @jax.jit
    def sample(start):
        seen = jnp.zeros((rows, vocab_size), bool) if "repetition_penalty" in options else None
        samples = sampler.begin(start, max_length=length, seen=seen)
        for until in (2, 3, length) if in_pieces else (length,):
            samples = sampler.extend(samples, step, (), until)
        return samples

    samples = sample(start_of(chain, [length] * rows))
    outputs, counts = np.unique(samples.tokens, axis=0, return_counts=True)
    observed = dict(zip(map(tuple, outputs.tolist()), counts, strict=True))

    def enumerate_outputs(prefix, p):
        if len(prefix) == length or EOS in prefix:
            yield (*prefix, *[PAD] * (length - len(prefix))), p
            return
        logits = chain[prefix[-1] if prefix else BOS]
        each = allowed_probabilities(logits, prefix, options)
        for token in np.flatnonzero(each):
            yield from enumerate_outputs((*prefix, int(token)), p * each[token])

    expected = dict(enumerate_outputs((), 1.0))
    assert set(observed) <= set(expected)
    frequent = [output for output, p in expected.items() if p * rows >= 5]
    found = [observed.get(output, 0) for output in frequent]
    wanted = [expected[output] * rows for output in frequent]
    rest = rows - sum(found), rows - sum(wanted)
    if rest[1] >= 5:
        found, wanted = [*found, rest[0]], [*wanted, rest[1]]
    assert len(wanted) > 15
    wanted = np.array(wanted) * sum(found) / sum(wanted)
    assert stats.chisquare(found, wanted).pvalue > 0.001


def test_log_probabilities_are_those_of_the_model():
    chain, step = two_chains(3, share=0.5)
    sampler = SpeculativeSampler(0.7, None, None, **IDS, draft_length=3)

    @jax.jit
    def sample(start):
        return sampler.extend(sampler.begin(start, max_length=9), step, (), 9)

    samples = jax.device_get(sample(start_of(chain, [9] * 50)))
    log_p = chain - np.log(np.exp(chain).sum(axis=1, keepdims=True))
    for tokens, found in zip(samples.tokens.tolist(), samples.log_probs, strict=True):
        tokens = tokens[: tokens.index(PAD)] if PAD in tokens else tokens
        steps = itertools.pairwise([BOS, *tokens])
        np.testing.assert_allclose(found[: len(tokens)], [log_p[a, b] for a, b in steps], atol=1e-5)
        assert not found[len(tokens) :].any()


def test_a_state_with_fields_of_its_own_says_how_it_rewinds():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Slots:
        length: jax.Array

        def rewind(self, counts):
            return dataclasses.replace(self, length=self.length - counts)

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Sums(Slots):
        total: jax.Array

    length = jnp.zeros(2, jnp.int32)
    assert can_rewind({"a": Slots(length)})
    assert not can_rewind([Slots(length), Sums(length, length)])

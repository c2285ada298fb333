# SPDX-License-Identifier: Apache-2.0
"""Search with an encoder-decoder: output lengths, searches by name, and errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import assert_refused
from transformer_jax.decoding import Hypotheses, Sampler
from transformer_jax.inference import seq2seq_search
from transformer_jax.inference.config import SEARCHES, DecodeConfig
from transformer_jax.inference.draft import Drafted, DraftedModel, Lookup
from transformer_jax.inference.seq2seq_search import Request, Seq2SeqSearch
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.runs.settings import DEFAULTS
from transformer_jax.tokenization.specials import BOS, EOS, PAD, Frame
from transformer_jax.tools.benchmark import EndlessModel

SOURCES = [[7, 8, 9, EOS], [5, EOS]]
REQUESTS = [Request(source) for source in SOURCES]
SHORT = DecodeConfig(max_extra_length=4, batch_size=3)


@pytest.fixture(scope="module")
def task_of(tiny_config):
    def make(**model):
        changes = {f"model.{name}": value for name, value in model.items()}
        settings = read_settings(tiny_config(changes))
        return build.build_task(settings, {"source": 20, "target": 20}, tokenizers=None)

    return make


@pytest.fixture(scope="module")
def task(task_of):
    """One task for most tests, whose searches of equal shapes are compiled once."""
    return task_of()


@pytest.fixture(scope="module")
def params(task, random_params):
    return random_params(task)


def test_the_length_limit_depends_on_each_source(task, params):
    decode = dataclasses.replace(SHORT, search="greedy")
    tokens, scores = task.search(params, REQUESTS, decode)
    assert tokens.shape == (2, 1, 16 + 4) and scores.shape == (2, 1)
    assert ((tokens != PAD).sum(axis=-1)[:, 0] <= [4 + 4, 2 + 4]).all()

    arrays = {"source": [[7, 8, 9, EOS], [5, EOS, PAD, PAD]], "source_lengths": [4, 2]}
    arrays |= {"prompt": [[BOS]] * 2, "prompt_lengths": [1, 1], "limits": [6, 2], "numbers": [0, 1]}
    arrays = {name: np.array(rows) for name, rows in arrays.items()}
    endless = dataclasses.replace(task.search, model=EndlessModel(task.model, EOS))
    found = endless.compiled(params, arrays, decode, 6)
    assert (found.tokens != PAD).sum(axis=-1)[:, 0].tolist() == [6, 2]
    assert not (found.tokens == EOS).any()


def test_a_forced_first_token_counts_in_the_length(task, params):
    """As in transformers; the tokens of a prefix do not."""
    language = dataclasses.replace(task.search.specials, translation=Frame((7,), (EOS,)))
    search = Seq2SeqSearch(task.search.model, language)
    decode = dataclasses.replace(SHORT, beam_size=2, alpha=0.0, length_penalty="power")
    tokens, log_probs = search(params, REQUESTS, decode)
    again, scores = search(params, REQUESTS, dataclasses.replace(decode, alpha=1.0))
    np.testing.assert_array_equal(tokens, again)
    lengths = (tokens != PAD).sum(axis=-1)
    np.testing.assert_allclose(scores, log_probs / (1 + lengths), rtol=1e-5)


MANY = [Request([*range(4, 4 + 1 + (7 * i) % 9), EOS], number=i) for i in range(9)]
CONSTRAINED = [
    dataclasses.replace(request, constraint_tokens=[5] * (1 + request.number % 3))
    for request in [*MANY[:4], Request([6] * 17 + [EOS], number=9), *MANY[4:]]
]
"""One of the sources is so long that its batch has another shape."""


class NoRepetition:
    """Allows no token after itself, and none of a sentence's first constraint token. Its state is
    the last token and that constraint token."""

    def begin(self, tokens, counts, limits):
        return jnp.zeros_like(counts), tokens[:, 0]

    def allowed(self, state):
        last, other = state
        return (jnp.arange(20) != last[:, None]) & (jnp.arange(20) != other[:, None])

    def advance(self, state, tokens):
        return (tokens, state[1]), tokens


RECURRENT = {name: DEFAULTS[f"model.{name}"] for name in ("d_ff", "num_heads")}
RECURRENT |= {"architecture": "recurrent"}

GREEDY = {"search": "greedy"}
SAMPLES = {"temperature": 1.0, "num_outputs": 2}
SEARCHED = {
    "greedy": (GREEDY, 8),  # two take places at once
    "beams": ({"beam_size": 3, "num_outputs": 2, "alpha": 1.0}, 3),
    "samples": (SAMPLES, 3),
    "recurrent": ({"beam_size": 2}, 3),
    "constraint": (GREEDY, 3),
    "draft": (GREEDY, 3),
}
"""Settings of a search, and a batch size."""


def outputs_of(found):
    """Tokens and scores of each output, without padding."""
    tokens, scores = found
    return [row[row != PAD].tolist() for row in tokens], scores


@pytest.mark.parametrize("name", SEARCHED)
def test_outputs_are_those_of_each_source_alone(task_of, task, params, random_params, name):
    """In order, whatever the batch size: when sentences are done, the next take their places."""
    settings, batch_size = SEARCHED[name]
    if name == "recurrent":
        task = task_of(**RECURRENT)
        params = random_params(task)
    decode = dataclasses.replace(SHORT, **settings)
    search = task.search
    requests = MANY
    if name == "constraint":
        search = dataclasses.replace(search, constraint=NoRepetition())
        requests = CONSTRAINED
    alone = [outputs_of([rows[0] for rows in search(params, [one], decode)]) for one in requests]
    lengths = {len(output) for outputs, _ in alone for output in outputs}
    assert len(lengths) > 2
    if name == "draft":
        search = Seq2SeqSearch(DraftedModel(task.model, Lookup(20), 2), search.specials)
        params = Drafted(params, {})
    many = dataclasses.replace(decode, batch_size=batch_size)
    found = search.find_all(params, requests, many)
    for ours, (tokens, scores) in zip(found, alone, strict=True):
        assert outputs_of(ours)[0] == tokens
        np.testing.assert_allclose(ours[1], scores, rtol=1e-4)


def test_free_places_of_a_batch_are_filled(task, params, monkeypatch):
    requests = [Request([4 + i, 5, 6, *[7] * (i % 5), EOS], number=i) for i in range(14)]
    num_steps, plain = [], Seq2SeqSearch._step

    def counted(self, params, may_end=True):
        step = plain(self, params, may_end)

        def counting(*inputs):
            jax.debug.callback(lambda: num_steps.append(1))
            return step(*inputs)

        return counting

    monkeypatch.setattr(Seq2SeqSearch, "_step", counted)
    decode = DecodeConfig(search="greedy", max_extra_length=6, batch_size=4)
    found = task.search.find_all(params, requests, decode)
    jax.effects_barrier()
    by_length = sorted(requests, key=lambda one: len(one.source), reverse=True)
    lengths = [int((found[requests.index(one)][0] != PAD).sum()) for one in by_length]
    of_batches = sum(max(lengths[i : i + 4]) - 1 for i in range(0, len(lengths), 4))
    assert len(num_steps) < of_batches


def test_a_prefix_is_continued_as_the_search_would(task, params):
    """With the beginning of its own output as prefix, greedy search finds the rest."""
    decode = dataclasses.replace(SHORT, search="greedy")
    tokens, _ = task.search(params, REQUESTS, decode)
    whole = [row[row != PAD].tolist() for row in tokens[:, 0]]
    prefixes = [whole[0][:2], []]
    requests = [Request(*one) for one in zip(SOURCES, prefixes, strict=True)]
    rest, _ = task.search(params, requests, decode)
    for output, prefix, found in zip(whole, prefixes, rest[:, 0], strict=True):
        left = output[len(prefix) :]
        assert left and found[: len(left)].tolist() == left


def test_equal_sources_of_other_numbers_have_other_samples(task, params):
    decode = dataclasses.replace(SHORT, **SAMPLES)
    tokens, _ = task.search(params, [Request(SOURCES[0], number=n) for n in (3, 4)], decode)
    assert (tokens[0] != tokens[1]).any()


class Longest(Sampler):
    """Repeats the likeliest first token, and never ends."""

    def find(self, decode_step, start, *, num_outputs, max_length):
        first = start.logits[:, EOS + 1 :].argmax(axis=1) + EOS + 1
        tokens = jnp.broadcast_to(first[:, None, None], (len(first), num_outputs, max_length))
        return Hypotheses(tokens, jnp.zeros((len(first), num_outputs)))


def test_a_registered_search_is_found_by_name(task, params, with_entries):
    """A subclass that replaces `find` alone is used for any number of sources."""
    search = Longest(1.0, None, None, EOS, PAD)
    with_entries(SEARCHES, {"longest": lambda decode, ids: search})
    decode = DecodeConfig(search="longest", num_outputs=5, max_extra_length=3, batch_size=2)
    tokens, _ = task.search(params, REQUESTS, decode)
    assert tokens.shape == (2, 5, 19) and (tokens == tokens[:, :1, :1]).all()
    found = task.search.find_all(params, MANY, decode)
    assert all((tokens == tokens[:1, :1]).all() for tokens, _ in found)


@pytest.mark.parametrize(
    ("settings", "beams", "rows"),
    [({"beam_size": 3}, 3, 4), ({"temperature": 1.0, "num_outputs": 5}, 1, 20)],
)
def test_the_state_of_all_beams_and_samples_must_fit(task_of, monkeypatch, settings, beams, rows):
    checked = []
    monkeypatch.setattr(seq2seq_search, "require_memory", lambda size, _: checked.append(size))
    task = task_of(dtype="bfloat16")
    task.search.check(7, DecodeConfig(**settings, max_extra_length=3, batch_size=4))
    assert checked == [rows * task.model.state_bytes(10, beams)]


def test_impossible_searches_are_refused(task_of):
    search = task_of(positions="learned", max_length=50).search
    sampled = DecodeConfig(temperature=1.0)

    def searching(**settings):
        return lambda: search({}, REQUESTS, DecodeConfig(**settings))

    assert_refused(
        {
            "decode: beam_size is 21; the target vocabulary has 20 pi": searching(beam_size=21),
            "decode: positions 'learned' reach to max_length 50": searching(max_extra_length=47),
            "decode: search 'sample' has no beams; take search beam": (
                lambda: search.beam_tree({}, REQUESTS[0], sampled)
            ),
        }
    )

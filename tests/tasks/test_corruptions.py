# SPDX-License-Identifier: Apache-2.0
"""Corruptions, against the examples of the papers, and their frequencies over 10,000 texts."""

import collections
import dataclasses

import numpy as np
import pytest

from tests.refusals import assert_refused
from transformer_jax.tasks.corruptions import (
    UL2,
    UL2_MODES,
    Infilling,
    InfillingOptions,
    PrefixLM,
    Spans,
    SpansOptions,
    TextTokens,
    infill,
    noise_mask,
    permute_sentences,
    random_segments,
    replace_spans,
)
from transformer_jax.tokenization import DEFAULT_SPECIALS

MASK = 90
EXTRA = tuple(range(100, 200))
PERIOD = 50
TEXT = TextTokens(
    dataclasses.replace(DEFAULT_SPECIALS, mask=MASK, extra=EXTRA), np.arange(200) == PERIOD
)
TOKENS = np.arange(10, 30, dtype=np.int32)
TIMES = 10_000


def drawn(corruption, tokens=TOKENS, times=TIMES):
    rng = np.random.default_rng(0)
    return [corruption(tokens, rng) for _ in range(times)]


def restored(pair, sentinels=EXTRA):
    """The text that sentinels in the source stand for, by the spans of the target."""
    starts = np.flatnonzero(np.isin(pair.target, sentinels))
    spans = {part[0]: part[1:].tolist() for part in np.split(pair.target, starts) if len(part)}
    parts = [spans.get(token, [token]) for token in pair.source]
    return [token for part in parts for token in part]


def test_spans_of_figure_2_of_t5():
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]
    vocabulary = [*words, "<X>", "<Y>", "<Z>"]
    is_hidden = np.isin(words, ["for", "inviting", "last"])
    tokens = np.arange(len(words))

    def written(ids):
        return " ".join(vocabulary[i] for i in ids)

    pair = replace_spans(tokens, is_hidden, (11, 12, 13), closing=True)
    assert written(pair.source) == "Thank you <X> me to your party <Y> week ."
    assert written(pair.target) == "<X> for inviting <Y> last <Z>"
    open_pair = replace_spans(tokens, is_hidden, (11, 12), closing=False)
    assert written(open_pair.target) == "<X> for inviting <Y> last"


def test_noise_masks_have_exact_counts_and_spans_anywhere():
    rng = np.random.default_rng(0)
    masks = np.array([noise_mask(20, 0.3, 2.0, rng) for _ in range(TIMES)])
    starts = masks & ~np.pad(masks, ((0, 0), (1, 0)))[:, :-1]
    assert set(masks.sum(axis=1)) == {6} and set(starts.sum(axis=1)) == {3}
    one_span = np.mean([noise_mask(7, 0.15, 3.0, rng) for _ in range(TIMES)], axis=0)
    np.testing.assert_allclose(one_span, 1 / 7, atol=0.015)  # of a sentence any token, not the last
    ways = collections.Counter(tuple(random_segments(5, 3, rng)) for _ in range(TIMES))
    assert len(ways) == 6 and all(sum(way) == 5 for way in ways)
    np.testing.assert_allclose([n / TIMES for n in ways.values()], 1 / 6, atol=0.015)


def test_rows_of_t5_have_its_sizes():
    """568 tokens become 512 and 114 with their end tokens (Raffel et al.'s code)."""
    sizes = Spans(TEXT, SpansOptions(closing=False)).longest(568)
    assert (sizes.source + 1, sizes.target + 1) == (512, 114)


@pytest.mark.parametrize("corruption", [Spans(TEXT), PrefixLM(TEXT), UL2(TEXT), Infilling(TEXT)])
@pytest.mark.parametrize("length", [2, 3, 20, 60])
def test_no_token_is_lost_and_no_row_is_longer_than_stated(corruption, length):
    tokens = np.arange(10, 10 + length, dtype=np.int32)
    longest = corruption.longest(length)
    for pair in drawn(corruption, tokens, 200):
        sizes = (len(pair.source), len(pair.target), len(pair.source) + len(pair.target))
        assert (np.array(sizes) <= longest).all() and min(sizes) > 0
        if isinstance(corruption, Infilling):
            assert (pair.target == tokens).all()
            continue
        source = pair.source[isinstance(corruption, UL2) :]
        if np.isin(pair.target, EXTRA).any():
            assert restored(pair._replace(source=source)) == tokens.tolist()
        else:
            assert [*source, *pair.target] == tokens.tolist()


def test_a_prefix_ends_anywhere_with_the_same_probability():
    ends = np.bincount([len(pair.source) for pair in drawn(PrefixLM(TEXT))], minlength=20)
    assert ends[0] == 0
    np.testing.assert_allclose(ends[1:] / TIMES, 1 / 19, atol=0.012)


def test_infilling_of_figure_2_of_bart():
    """ABC.DE. becomes A_.D_E. when BC, and nothing between D and E, are hidden."""
    ways = {
        tuple(infill(np.array([*b"ABC.DE."]), (2, 0), 95, np.random.default_rng(i)))
        for i in range(500)
    }
    assert tuple(b"A_.D_E.") in ways
    orders = {
        bytes(permute_sentences(np.array([*b"ABC.DE."]), np.arange(128) == 46, rng).tolist())
        for rng in map(np.random.default_rng, range(20))
    }
    assert orders == {b"ABC.DE.", b"DE.ABC."}


def test_infilling_hides_its_share_in_spans_of_poisson_lengths():
    settings = InfillingOptions(rate=0.3, mean_length=3, permute=False)
    pairs = drawn(Infilling(TEXT, settings), np.arange(10, 50, dtype=np.int32), 2000)
    assert {(pair.source != MASK).sum() for pair in pairs} == {40 - 12}
    masks = np.mean([(pair.source == MASK).sum() for pair in pairs])
    # 12 tokens are covered after n spans; the last is cut, so that n is 12 / 3 and about a half.
    assert masks == pytest.approx(12 / 3 + 0.6, abs=0.3)


def test_ul2_mixes_seven_denoisers_under_three_modes():
    pairs = drawn(UL2(TEXT), np.arange(200, 300, dtype=np.int32))
    modes = np.bincount([pair.source[0] - EXTRA[0] for pair in pairs], minlength=3) / TIMES
    np.testing.assert_allclose(modes, [2 / 7, 1 / 7, 4 / 7], atol=0.02)
    suffixes = [pair for pair in pairs if pair.source[0] == EXTRA[UL2_MODES.index("S")]]
    assert {len(pair.target) for pair in suffixes} == {25}
    spans = {np.isin(pair.target, EXTRA).sum() for pair in pairs} - {0}
    assert spans == {5, 2, 17, 6, 1}  # 15 or 50 tokens in spans of 3, 8 or 64


def test_blanks_of_a_line_become_what_the_source_has():
    line = [10, MASK, 11, MASK]
    assert Spans(TEXT).prompt(line) == [10, 100, 11, 101]
    assert UL2(TEXT).prompt(line) == [100, 10, 103, 11, 104] and UL2(TEXT).prompt([10]) == [101, 10]
    assert Infilling(TEXT).prompt(line) == line
    few = TextTokens(dataclasses.replace(TEXT.specials, extra=(100,)), TEXT.ends_sentence)
    assert_refused({"2 blanks, more than the 1 sentinels": lambda: Spans(few).prompt(line)})

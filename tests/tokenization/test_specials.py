# SPDX-License-Identifier: Apache-2.0
"""Special tokens: frames, ids that a search never generates, ids that decoding drops."""

from transformer_jax.tokenization import DEFAULT_SPECIALS, Frame, SpecialTokens

GPT2 = SpecialTokens(
    pad=9, eos=9, start=9, first=9, translation=Frame((), (9,)), encoder=Frame((9,), (9,), (9,))
)
MBART = SpecialTokens(
    pad=1,
    unk=3,
    eos=2,
    start=2,
    first=0,
    mask=8,
    translation=Frame((6,), (2, 7)),
    encoder=Frame((0,), (2,), (2, 2)),
    others=(5,),
    unused=(10, 11),
)


def test_a_frame_surrounds_a_text_and_separates_a_pair():
    frame = Frame((0,), (2,), (3, 4))
    assert frame.around([7, 8]) == [0, 7, 8, 2] and frame.size() == 2
    assert frame.around([7, 8], [9]) == [0, 7, 8, 3, 4, 9, 2] and frame.size(2) == 4
    assert DEFAULT_SPECIALS.decoder.around([7], [8]) == [3, 7, 3, 8, 3]
    assert MBART.decoder.around([7]) == [0, 7, 2]


def test_a_search_never_generates_padding_unknown_heads_or_unused_ids_but_may_end():
    assert DEFAULT_SPECIALS.banned == (0, 1, 2)
    assert GPT2.banned == ()
    assert set(MBART.banned) == {1, 3, 0, 6, 10, 11}


def test_ids_without_text_include_all_special_and_unused_ones():
    assert DEFAULT_SPECIALS.ids == {0, 1, 2, 3}
    assert GPT2.ids == {9}
    assert MBART.ids == {0, 1, 2, 3, 5, 6, 7, 8, 10, 11}

# SPDX-License-Identifier: Apache-2.0
"""The constraint allows exactly the prefixes of trees: by enumeration."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import assert_refused
from transformer_jax.inference.tree_constraint import SHORTEST, TreeConstraint
from transformer_jax.tokenization import SymbolTokenizer
from transformer_jax.trees import tree_from_tokens, with_lookahead

PLAIN = SymbolTokenizer(["(A", "(B", ")", "X", "Y"])
READING = SymbolTokenizer([*PLAIN.symbols, "/", "/a", "/b"])
"""With a lookahead of one word."""
EOS = PLAIN.specials.eos


@functools.cache
def outputs(symbols, num_words, limit):
    """All outputs that are trees over this number of words, found by trying all sequences."""
    words, found = ["a", "b", "a"][:num_words], set()
    reads = num_words + 1 if symbols is READING else 0
    for length in range(2, limit - reads):
        for tokens in itertools.product(PLAIN.symbols, repeat=length):
            try:
                tree_from_tokens(tokens, words)
            except ValueError:
                continue
            read = with_lookahead(tokens, words) if symbols is READING else tokens
            found.add((*map(symbols.id_of, read), EOS))
    return found


def begin(symbols, num_words, limit):
    given = [symbols.id_of(token) for token in ("/a", "/b", "/a")][:num_words]
    given += [symbols.id_of("/")] * (symbols is READING)
    state = (jnp.array([[*given, 0]]), jnp.array([len(given)]), jnp.array([limit]))
    return TreeConstraint.from_symbols(symbols).begin(*state)


@pytest.mark.parametrize(
    "symbols, num_words, limit",
    [(PLAIN, *sizes) for sizes in ((1, 4), (1, 7), (2, 7))]
    + [(READING, *sizes) for sizes in ((1, 6), (1, 9), (2, 10))],
)
def test_every_path_leads_to_a_tree_and_every_tree_has_a_path(symbols, num_words, limit):
    constraint = TreeConstraint.from_symbols(symbols)
    allowed, advance = jax.jit(constraint.allowed), jax.jit(constraint.advance)
    waiting, ended = [((), begin(symbols, num_words, limit))], set()
    while waiting:
        path, state = waiting.pop()
        following = np.flatnonzero(allowed(state)[0])
        assert len(following)
        for token in following.tolist():
            if token == EOS:
                ended.add((*path, token))
            else:
                after, [read] = advance(state, jnp.array([token]))
                waiting.append(((*path, int(read)), after))
    assert ended and ended == outputs(symbols, num_words, limit)


def test_the_shortest_limit_suffices_for_a_flat_tree():
    constraint = TreeConstraint.from_symbols(PLAIN)
    state, tokens = begin(PLAIN, 3, 3 + SHORTEST), []
    for _ in range(3 + SHORTEST):
        tokens.append(int(np.flatnonzero(constraint.allowed(state)[0])[-1]))
        state, _ = constraint.advance(state, jnp.array(tokens[-1:]))
    assert PLAIN.pieces(tokens[:-1]) == ["(B", "Y", "Y", "Y", ")"] and tokens[-1] == EOS


@pytest.mark.parametrize("symbols", [PLAIN, READING])
def test_a_sentence_of_no_words_has_an_empty_output(symbols):
    none = jnp.zeros(1, jnp.int32)
    constraint = TreeConstraint.from_symbols(symbols)
    state = constraint.begin(jnp.zeros((1, 2), jnp.int32), none, none + 9)
    assert np.flatnonzero(constraint.allowed(state)[0]).tolist() == [EOS]


def test_a_vocabulary_without_trees_is_refused():
    for symbols in (["NN", ")"], ["(A", ")"], ["(A", "NN"]):
        make = functools.partial(TreeConstraint.from_symbols, SymbolTokenizer(symbols))
        assert_refused({"no tags, or no brackets with labels": make})

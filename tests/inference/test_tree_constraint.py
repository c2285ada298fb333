"""What the constraint allows is what can still become a tree: by enumeration."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.inference.tree_constraint import SHORTEST, TreeConstraint
from transformer_jax.tokenization import Symbols
from transformer_jax.trees import from_tokens

SYMBOLS = Symbols(["(A", "(B", ")", "X", "Y"])
CONSTRAINT = TreeConstraint.of(SYMBOLS)
EOS = SYMBOLS.specials.eos


@functools.cache
def outputs(num_words, limit):
    """All outputs that are trees over so many words, by trying all sequences."""
    words, found = ["w"] * num_words, set()
    for length in range(limit):
        for tokens in itertools.product(SYMBOLS.symbols, repeat=length):
            try:
                from_tokens(tokens, words)
            except ValueError:
                continue
            found.add((*map(SYMBOLS.id_of, tokens), EOS))
    return found


@pytest.mark.parametrize("num_words, limit", [(1, 4), (1, 7), (2, 5), (2, 7)])
def test_every_path_leads_to_a_tree_and_every_tree_has_a_path(num_words, limit):
    waiting, ended = [((), begin(num_words, limit))], set()
    while waiting:
        path, state = waiting.pop()
        allowed = np.flatnonzero(CONSTRAINT.allowed(state)[0])
        assert len(allowed)
        for token in allowed.tolist():
            if token == EOS:
                ended.add((*path, token))
            else:
                waiting.append(((*path, token), CONSTRAINT.advance(state, jnp.array([token]))))
    assert ended == outputs(num_words, limit)


def begin(num_words, limit):
    return CONSTRAINT.begin(jnp.array([num_words]), jnp.array([limit]))


def test_the_least_room_is_enough_for_a_flat_tree():
    state, tokens = begin(3, 3 + SHORTEST), []
    for _ in range(3 + SHORTEST):
        tokens.append(int(np.flatnonzero(CONSTRAINT.allowed(state)[0])[-1]))
        state = CONSTRAINT.advance(state, jnp.array(tokens[-1:]))
    assert SYMBOLS.pieces(tokens[:-1]) == ["(B", "Y", "Y", "Y", ")"] and tokens[-1] == EOS


def test_a_sentence_of_no_words_has_an_empty_output():
    assert np.flatnonzero(CONSTRAINT.allowed(begin(0, 9))[0]).tolist() == [EOS]


def test_a_vocabulary_without_an_end_of_constituents_is_refused():
    with pytest.raises(ValueError, match=r"no '\)'"):
        TreeConstraint.of(Symbols(["NN"]))

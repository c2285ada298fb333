import pickle

import pytest

from transformer_jax.tokenization import Symbols

SYMBOLS = Symbols(["(NP", ")", "NN"])


def test_each_symbol_is_a_token_behind_the_special_ones():
    assert SYMBOLS.vocab_size == 7
    assert SYMBOLS.encode("(NP NN  XX )") == [4, 6, 1, 5]
    assert SYMBOLS.encode("") == []
    assert SYMBOLS.encode_words(["NN", "XX"]) == [[6], [1]]
    assert SYMBOLS.decode([2, 4, 6, 1, 5, 3]) == "(NP NN )"
    assert SYMBOLS.pieces([2, 4, 3]) == ["⟨s⟩", "(NP", "⟨/s⟩"]
    assert SYMBOLS.starts_word([4, 5]) == [True, True]
    assert SYMBOLS.count_unknown([4, 1, 1]) == 2


def test_they_are_stored_as_a_list():
    for copy in (Symbols.from_json(SYMBOLS.to_json()), pickle.loads(pickle.dumps(SYMBOLS))):
        assert copy.symbols == SYMBOLS.symbols and copy.encode("NN )") == [6, 5]


@pytest.mark.parametrize(
    "content", [b"{", b"{}", b"[1]", b"[]", b'["a", "a"]', b'["a b"]', b'[""]']
)
def test_what_is_no_list_of_symbols_is_refused(content):
    with pytest.raises(ValueError, match="symbols"):
        Symbols.from_json(content)


def test_special_tokens_are_no_symbols():
    with pytest.raises(ValueError, match="differ"):
        Symbols(["⟨pad⟩"])

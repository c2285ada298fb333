"""Sentences and their trees, as an encoder-decoder that parses reads and writes them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.data.examples import Example
from transformer_jax.decoding import up_to_end
from transformer_jax.errors import UserError
from transformer_jax.tokenization import Tokenizer, Tokenizers
from transformer_jax.trees import Tree, from_tokens, parse_tree, split_words, to_tokens


class Part(NamedTuple):
    """Words of a sentence that are read together, and all their tokens, special ones among them."""

    words: Sequence[str]
    tokens: Sequence[int]


def parts_of(tokenizer: Tokenizer, line: str, limit: int) -> list[Part]:
    """A sentence in parts of at most `limit` tokens, of as many words as there is room for; none of
    a blank one. A word that has more tokens than that loses its last ones."""
    frame, words = tokenizer.specials.translation, split_words(line)
    room = limit - frame.size()
    parts: list[tuple[list[str], list[int]]] = []
    for word, pieces in zip(words, tokenizer.encode_words(words), strict=True):
        if not parts or len(parts[-1][1]) + len(pieces) > room:
            parts.append(([], []))
        parts[-1][0].append(word)
        parts[-1][1].extend(pieces[:room])
    return [Part(of_part, frame.around(ids)) for of_part, ids in parts]


def pair_tokens(tokenizers: Tokenizers, example: Example) -> Mapping[str, list[int]]:
    """All tokens of a sentence and of its tree, special ones among them.

    Raises:
      UserError: the target is no tree over the words of the source.
    """
    words, target = split_words(example["source"]), example["target"]
    try:
        tree = parse_tree(target)
    except ValueError as error:
        raise UserError(f"{target!r} is no tree: {error}") from error
    if tree.words() != words:
        raise UserError(f"{target!r} is no tree over the words {' '.join(words)!r}")
    source, symbols = tokenizers.text("source"), tokenizers.text("target")
    pieces = [piece for of_word in source.encode_words(words) for piece in of_word]
    return {
        "source": source.specials.translation.around(pieces),
        "target": symbols.specials.translation.around(symbols.encode(" ".join(to_tokens(tree)))),
    }


def written_tree(symbols: Tokenizer, words: Sequence[str], row: np.ndarray) -> Tree:
    """The tree of a search's output, tokens [L], over these words."""
    *tokens, _ = up_to_end(row.tolist(), symbols.specials.eos)
    return from_tokens(symbols.pieces(tokens), words)

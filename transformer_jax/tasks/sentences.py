"""Sentences and their trees, as an encoder-decoder that parses reads and writes them."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.data.examples import Example
from transformer_jax.decoding import up_to_end
from transformer_jax.errors import UserError
from transformer_jax.inference.requests import Found, Request
from transformer_jax.inference.tree_constraint import TreeConstraint
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tokenization import (
    UNKNOWN,
    ClassedWords,
    Symbols,
    Tokenizer,
    words_and_classes,
)
from transformer_jax.trees import (
    READ,
    Tree,
    from_tokens,
    parse_tree,
    split_words,
    to_tokens,
    with_lookahead,
    without_lookahead,
)


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


def tree_over_words(example: Example) -> Tree:
    """The tree of an example; UserError where the target is none over the words of the source."""
    words, target = split_words(example["source"]), example["target"]
    try:
        tree = parse_tree(target)
    except ValueError as error:
        raise UserError(f"{target!r} is no tree: {error}") from error
    if tree.words() != words:
        raise UserError(f"{target!r} is no tree over the words {' '.join(words)!r}")
    return tree


def tree_symbols(task: TaskConfig, trees: Iterable[str]) -> set[str]:
    """The vocabulary of trees in brackets: their tokens, and of their words as many as `task` asks
    for, with their classes."""
    symbols, counts = set[str](), Counter[str]()
    for text in trees:
        tree = parse_tree(text)
        symbols.update(to_tokens(tree))
        counts.update(tree.words())
    if not task.tree_words:
        return symbols
    names = {*words_and_classes(counts, task.tree_words), UNKNOWN}
    return symbols | {READ} | {READ + name for name in names}


@dataclasses.dataclass(frozen=True)
class TreeWriting:
    """Trees as tokens of a vocabulary of `tree_symbols`; with a lookahead where it has words."""

    symbols: Symbols

    @functools.cached_property
    def constraint(self) -> TreeConstraint:
        """What holds a search to trees; ValueError as `TreeConstraint.of`."""
        return TreeConstraint.of(self.symbols)

    @property
    def looks_ahead(self) -> bool:
        """Whether the decoder reads the words."""
        return self.constraint.read is not None

    @property
    def predicts(self) -> tuple[int, ...] | None:
        """Of each token that which the model predicts: that it reads on, but not what."""
        if not self.looks_ahead:
            return None
        ids = range(self.symbols.vocab_size)
        read = self.symbols.id_of(READ)
        return tuple(
            read if piece.startswith(READ) else i
            for i, piece in zip(ids, self.symbols.pieces(ids), strict=True)
        )

    def encode(self, tree: Tree) -> list[int]:
        """All tokens of a tree, special ones among them."""
        tokens = to_tokens(tree)
        if self.looks_ahead:
            tokens = with_lookahead(tokens, map(self._words.name_of, tree.words()))
        return self.symbols.specials.translation.around(self.symbols.encode(" ".join(tokens)))

    def request(self, part: Part, number: int) -> Request:
        """What is asked of a search; the constraint is told what the decoder reads of the sentence
        while it writes, without a lookahead a number for each word."""
        if not self.looks_ahead:
            return Request(part.tokens, number=number, given=[0] * len(part.words))
        names = (*map(self._words.name_of, part.words), "")
        given = [self.symbols.id_of(READ + name) for name in names]
        return Request(part.tokens, number=number, given=given, forced=len(given))

    def trees(self, part: Part, found: Found) -> list[tuple[Tree, float]]:
        """The trees that a search found, and their scores."""
        return [
            (self._tree(part.words, row), float(score))
            for row, score in zip(*found, strict=True)
            if score > -np.inf
        ]

    def _tree(self, words: Sequence[str], row: np.ndarray) -> Tree:
        *written, _ = up_to_end(row.tolist(), self.symbols.specials.eos)
        pieces = self.symbols.pieces(written)
        return from_tokens(without_lookahead(pieces) if self.looks_ahead else pieces, words)

    @functools.cached_property
    def _words(self) -> ClassedWords:
        words = (one.removeprefix(READ) for one in self.symbols.symbols if one.startswith(READ))
        return ClassedWords(word for word in words if word)

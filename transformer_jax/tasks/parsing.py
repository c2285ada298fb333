# SPDX-License-Identifier: Apache-2.0
"""Constituency parsing with an encoder-decoder (section 6.3; Vinyals et al. 2015)."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from transformer_jax.data.examples import Corpus, Example, Features
from transformer_jax.decoding import truncate_at_eos
from transformer_jax.errors import UserError, user_errors
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, pair_inputs
from transformer_jax.inference.seq2seq_search import Outputs, Request, Seq2SeqSearch
from transformer_jax.inference.tree_constraint import SHORTEST, TreeConstraint
from transformer_jax.scoring.parseval import parseval
from transformer_jax.tasks.base import Seq2SeqTask
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tasks.interface import Evaluation, Params, Prediction, TaskParts
from transformer_jax.tasks.line_warnings import collect_warnings
from transformer_jax.tasks.translation import Translation
from transformer_jax.tokenization import (
    UNKNOWN_CLASS,
    SymbolTokenizer,
    Tokenizer,
    WordClassTokenizer,
    choose_words_and_classes,
)
from transformer_jax.trees import (
    READ,
    Tree,
    join_trees,
    parse_tree,
    split_words,
    tree_from_tokens,
    tree_to_tokens,
    with_lookahead,
    without_lookahead,
)

if TYPE_CHECKING:
    from transformer_jax.decoding.beam_tree import BeamTree


class SentencePart(NamedTuple):
    """Words of a sentence that are parsed together, and their tokens with special tokens."""

    words: Sequence[str]
    tokens: Sequence[int]


def split_sentence(tokenizer: Tokenizer, line: str, limit: int) -> list[SentencePart]:
    """Splits a sentence into parts of at most `limit` tokens, each as long as possible. A blank
    line has no parts. A single word of more tokens loses its last ones."""
    frame = tokenizer.specials.translation
    words = split_words(line)
    room = limit - frame.size()
    parts: list[tuple[list[str], list[int]]] = []
    for word, pieces in zip(words, tokenizer.encode_words(words), strict=True):
        if not parts or len(parts[-1][1]) + len(pieces) > room:
            parts.append(([], []))
        parts[-1][0].append(word)
        parts[-1][1].extend(pieces[:room])
    return [SentencePart(words, frame.around(ids)) for words, ids in parts]


def target_tree(example: Mapping[str, str]) -> Tree:
    """The tree of an example. Raises UserError if the target is no tree over the words of the
    source."""
    words = split_words(example["source"])
    target = example["target"]
    with user_errors(f"{target!r} is no tree"):
        tree = parse_tree(target)
    if tree.words() != words:
        raise UserError(f"{target!r} is no tree over the words {' '.join(words)!r}")
    return tree


def tree_symbols(task: TaskConfig, trees: Iterable[str]) -> set[str]:
    """Vocabulary of trees in brackets: their tokens and, with `task.tree_words`, that many of their
    most frequent words and the word classes."""
    symbols: set[str] = set()
    counts: Counter[str] = Counter()
    for text in trees:
        tree = parse_tree(text)
        symbols.update(tree_to_tokens(tree))
        counts.update(tree.words())
    if not task.tree_words:
        return symbols
    names = {*choose_words_and_classes(counts, task.tree_words), UNKNOWN_CLASS}
    return symbols | {READ} | {READ + name for name in names}


@dataclasses.dataclass(frozen=True)
class TreeCodec:
    """Converts trees to token ids and back; with a lookahead if the vocabulary has words.

    Attributes:
      symbols: vocabulary made by `tree_symbols`.
    """

    symbols: SymbolTokenizer

    @functools.cached_property
    def constraint(self) -> TreeConstraint:
        """Constraint under which a search writes trees only. Raises ValueError as
        `TreeConstraint.from_symbols`."""
        return TreeConstraint.from_symbols(self.symbols)

    @property
    def has_lookahead(self) -> bool:
        return self.constraint.read is not None

    @property
    def predicts(self) -> tuple[int, ...] | None:
        """For each token the token that the model predicts in its place: `READ` for the token of
        any word, because the words are given. None without a lookahead."""
        if not self.has_lookahead:
            return None
        read = self.symbols.id_of(READ)
        pieces = self.symbols.pieces(range(self.symbols.vocab_size))
        return tuple(read if piece.startswith(READ) else i for i, piece in enumerate(pieces))

    def encode(self, tree: Tree) -> list[int]:
        tokens = tree_to_tokens(tree)
        if self.has_lookahead:
            tokens = with_lookahead(tokens, map(self._words.name_of, tree.words()))
        return self.symbols.specials.translation.around(self.symbols.encode(" ".join(tokens)))

    def request(self, part: SentencePart, number: int) -> Request:
        """Search request for a part of a sentence.

        The constraint gets the ids of the words that the decoder reads; without a lookahead it only
        needs their number.
        """
        if not self.has_lookahead:
            return Request(part.tokens, number=number, constraint_tokens=[0] * len(part.words))
        names = (*map(self._words.name_of, part.words), "")  # "" is read at the end
        ids = [self.symbols.id_of(READ + name) for name in names]
        return Request(part.tokens, number=number, constraint_tokens=ids, num_forced=len(ids))

    def decode(self, part: SentencePart, outputs: Outputs) -> list[tuple[Tree, float]]:
        return [
            (self._tree(part.words, row), float(score))
            for row, score in zip(*outputs, strict=True)
            if score > -np.inf
        ]

    def _tree(self, words: Sequence[str], row: np.ndarray) -> Tree:
        *ids, _ = truncate_at_eos(row.tolist(), self.symbols.specials.eos)  # all but EOS
        tokens = self.symbols.pieces(ids)
        return tree_from_tokens(without_lookahead(tokens) if self.has_lookahead else tokens, words)

    @functools.cached_property
    def _words(self) -> WordClassTokenizer:
        read = (symbol for symbol in self.symbols.symbols if symbol.startswith(READ))
        # `READ` alone is the symbol that the model predicts, and has no word.
        return WordClassTokenizer(symbol.removeprefix(READ) for symbol in read if symbol != READ)


@dataclasses.dataclass(frozen=True, repr=False)
class Parsing(Seq2SeqTask):
    """Constituency parsing with an encoder-decoder on {"source", "target"}: words, separated by
    spaces, and their tree in brackets.

    The decoder writes trees as tokens (`trees`), under a constraint: each output is a tree over
    exactly the words of its sentence.

    Attributes:
      codec: converts trees to tokens; None if no text is read, as in benchmarks.
    """

    codec: TreeCodec | None
    best_by: ClassVar[str] = "f1"
    evaluates_by: ClassVar[Sequence[str]] = Translation.evaluates_by
    predicts_by: ClassVar[Sequence[str]] = Translation.predicts_by

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        symbols = parts.tokenizers.sides.get("target")
        codec = TreeCodec(symbols) if isinstance(symbols, SymbolTokenizer) else None
        return super().build(parts, codec=codec, **fields)

    def preprocess(self, example: Example, rng: np.random.Generator) -> Features:
        """Returns the words and the tree as tokens, with special tokens. Raises UserError if the
        target is no tree over the words of the source."""
        return {side: np.array(ids, np.int32) for side, ids in self.encode_pair(example).items()}

    def encode_pair(self, pair: Mapping[str, str]) -> dict[str, list[int]]:
        tree = target_tree(pair)
        tokenizer = self.tokenizers.text("source")
        pieces = [piece for word in tokenizer.encode_words(tree.words()) for piece in word]
        source_ids = tokenizer.specials.translation.around(pieces)
        return {"source": source_ids, "target": self.tree_codec.encode(tree)}

    @property
    def tree_codec(self) -> TreeCodec:
        assert self.codec is not None, "this task has no tokenizers"
        return self.codec

    @property
    def predicts(self) -> tuple[int, ...] | None:
        return self.codec.predicts if self.codec else None

    def evaluate(self, params: Params, examples: Corpus, decode: DecodeConfig) -> Evaluation:
        """Returns the metrics of `scoring.parseval`, and the best tree of each sentence."""
        n_best = self.predict(params, [example["source"] for example in examples], decode)
        outputs = [trees[0] for trees in n_best]
        references = [example["target"] for example in examples]
        return parseval([output.text for output in outputs], references), outputs

    def check_search(self, examples: Corpus, decode: DecodeConfig) -> None:
        parts = [part for example in examples for part in self.parts(example["source"])]
        self._check(max((len(part.tokens) for part in parts), default=0), decode)

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields the `decode.num_outputs` best trees of each line, best first, in order.

        A blank line has a blank output, and a bracket within a word is -LRB- or -RRB- in the tree.
        A sentence of more than `max_source_length` tokens is parsed in parts, which are then joined
        under one root, with a warning that names the line, counted from `first_line`.
        """
        parts = [self.parts(line) for line in lines]
        requests = []
        joined = f"joined under one root (data.max_source_length is {self.max_source_length})"
        with collect_warnings(len(lines)) as warnings:
            for number, line_parts in enumerate(parts, first_line):
                requests += [self.tree_codec.request(part, number) for part in line_parts]
                if len(line_parts) > 1:
                    message = f"line {number} is too long: it is parsed in {len(line_parts)} parts"
                    several = f"are too long: they are parsed in parts, {joined}"
                    warnings.about(number).add(f"{message}, {joined}", several)
        outputs_of_parts = iter(self._search(params, requests, decode))
        for line_parts in parts:
            trees = [self.tree_codec.decode(part, next(outputs_of_parts)) for part in line_parts]
            # Output i of a line joins the i-th best trees of its parts.
            ranks = zip(*trees, strict=False) if trees else [()]
            yield [_join_outputs(rank) for rank in ranks]

    def parts(self, line: str) -> list[SentencePart]:
        """Parts of a sentence that the model can read."""
        return split_sentence(self.tokenizers.text("source"), line, self.max_source_length)

    def _search(
        self, params: Params, requests: Sequence[Request], decode: DecodeConfig
    ) -> list[Outputs]:
        self._check(0, decode)  # the search checks the lengths of each batch itself
        return self.search.find_all(params, requests, decode)

    def _check(self, longest: int, decode: DecodeConfig) -> None:
        least = SHORTEST - self.tokenizers.specials("source").translation.size()
        if decode.max_extra_length < least:
            raise UserError(
                f"decode.max_extra_length is {decode.max_extra_length}, and a tree takes {least} "
                "tokens more than its sentence at least, most of them twice as many as it has words"
            )
        self.search.check(longest, decode)

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """Returns a sentence and its tree as the model reads them; the first part of a sentence
        that is too long."""
        part = self._first_part(source)
        if target is None:
            [outputs] = self._search(params, [self.tree_codec.request(part, 1)], decode)
            target = str(self.tree_codec.decode(part, outputs)[0][0])
        texts = {"source": " ".join(part.words), "target": target}
        target_ids = self.encode_pair(texts)["target"]
        return pair_inputs(self.model, self.tokenizers, texts, part.tokens, target_ids)

    def beam_tree(self, params: Params, line: str, decode: DecodeConfig) -> "BeamTree":
        part = self._first_part(line)
        self._check(len(part.tokens), decode)
        return self.search.beam_tree(params, self.tree_codec.request(part, 1), decode)

    def _first_part(self, line: str) -> SentencePart:
        parts = self.parts(line)
        if not parts:
            raise UserError("there is no word to parse")
        return parts[0]

    @functools.cached_property
    def search(self) -> Seq2SeqSearch:
        """Searches for trees as tokens; without tokenizers, for any tokens."""
        specials = self.tokenizers.specials("target")
        if self.codec is None:
            return Seq2SeqSearch(self.model, specials)
        return Seq2SeqSearch(self.model, specials, self.codec.constraint, self.codec.symbols)


def _join_outputs(parts: Sequence[tuple[Tree, float]]) -> Prediction:
    """Output of a line, from the outputs of its parts; blank without parts."""
    if not parts:
        return Prediction("", 0.0)
    trees, scores = zip(*parts, strict=True)
    return Prediction(str(join_trees(trees)), sum(scores))

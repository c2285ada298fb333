"""Constituency parsing: a sentence in, its tree out (section 6.3; Vinyals et al. 2015)."""

import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from transformer_jax.data.examples import Corpus, Example, Features
from transformer_jax.decoding import BeamTree, truncate_at_eos
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, pair_inputs
from transformer_jax.inference.pairs import PairScore, require_reach, row_bytes, score_pairs
from transformer_jax.inference.seq2seq_search import (
    Found,
    Request,
    Seq2SeqSearch,
    search_in_batches,
)
from transformer_jax.inference.tree_constraint import SHORTEST, TreeConstraint
from transformer_jax.metrics import compute_metrics
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.scoring.parseval import parseval
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tasks.interface import (
    Batch,
    LossOptions,
    LossSums,
    Params,
    Prediction,
    TaskParts,
)
from transformer_jax.tasks.losses import Seq2SeqLosses
from transformer_jax.tasks.translation import Translation
from transformer_jax.tokenization import (
    UNKNOWN_CLASS,
    SymbolTokenizer,
    Tokenizer,
    Tokenizers,
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

# FOLDED tasks.sentences: Sentences and their trees, as an encoder-decoder that parses reads and
# writes them.


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
        symbols.update(tree_to_tokens(tree))
        counts.update(tree.words())
    if not task.tree_words:
        return symbols
    names = {*choose_words_and_classes(counts, task.tree_words), UNKNOWN_CLASS}
    return symbols | {READ} | {READ + name for name in names}


@dataclasses.dataclass(frozen=True)
class TreeWriting:
    """Trees as tokens of a vocabulary of `tree_symbols`; with a lookahead where it has words."""

    symbols: SymbolTokenizer

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
        tokens = tree_to_tokens(tree)
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
        *written, _ = truncate_at_eos(row.tolist(), self.symbols.specials.eos)
        pieces = self.symbols.pieces(written)
        return tree_from_tokens(without_lookahead(pieces) if self.looks_ahead else pieces, words)

    @functools.cached_property
    def _words(self) -> WordClassTokenizer:
        words = (one.removeprefix(READ) for one in self.symbols.symbols if one.startswith(READ))
        return WordClassTokenizer(word for word in words if word)


logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Parsing:
    """The task of an encoder-decoder on {"source", "target"}: words, separated by spaces, and their
    tree in brackets.

    The decoder writes the tree in the tokens of `trees`, and under a constraint: each output
    is a tree over exactly the words of its sentence.

    Attributes:
      model: maps source and shifted target to logits.
      tokenizers: of the sides "source", text, and "target", symbols.
      max_source_length, max_target_length: slots of a packed row, special tokens included.
      loss_options: of the training loss.
      text: how trees become tokens; None where no text is read, as in benchmarks.
    """

    model: Seq2Seq
    tokenizers: Tokenizers
    max_source_length: int
    max_target_length: int
    loss_options: LossOptions
    text: TreeWriting | None
    read: ClassVar[Sequence[str]] = Seq2SeqLosses.read
    best_by: ClassVar[str] = "f1"
    evaluates_by: ClassVar[Sequence[str]] = Translation.evaluates_by
    predicts_by: ClassVar[Sequence[str]] = Translation.predicts_by

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"source": self.max_source_length, "target": self.max_target_length}

    @classmethod
    def build(cls, parts: TaskParts) -> "Parsing":
        """The task of a run; ValueError as for `Translation`."""
        base, symbols = Translation.build(parts), parts.tokenizers.sides.get("target")
        return cls(
            model=base.model,
            tokenizers=base.tokenizers,
            max_source_length=base.max_source_length,
            max_target_length=base.max_target_length,
            loss_options=base.loss_options,
            text=TreeWriting(symbols) if isinstance(symbols, SymbolTokenizer) else None,
        )

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """The sentences as they are."""
        return examples

    def preprocess(self, example: Example, rng: np.random.Generator) -> Features:
        """The words and the tree as tokens, special ones around them; UserError where the target is
        no tree over the words of the source."""
        return {side: np.array(ids, np.int32) for side, ids in self._tokens(example).items()}

    def _tokens(self, example: Example) -> dict[str, list[int]]:
        """All tokens of both sides."""
        tree, source = tree_over_words(example), self.tokenizers.text("source")
        pieces = [piece for of_word in source.encode_words(tree.words()) for piece in of_word]
        read = source.specials.translation.around(pieces)
        return {"source": read, "target": self.writing.encode(tree)}

    @property
    def writing(self) -> TreeWriting:
        """How trees become tokens."""
        assert self.text is not None, "this task has no tokenizers"
        return self.text

    @functools.cached_property
    def losses(self) -> Seq2SeqLosses:
        """Of the model, on sentences and trees."""
        predicts = self.text.predicts if self.text else None
        specials = self.tokenizers.specials("target")
        return Seq2SeqLosses(self.model, specials, self.loss_options, predicts)

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters."""
        return self.losses.init(rng)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """As `Seq2SeqLosses`."""
        return self.losses(params, batch, rng)

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """How much of the trees is found, as `scoring.parseval` has it, and the best tree of each
        sentence."""
        n_best = self.predict(params, [example["source"] for example in examples], decode)
        outputs = [trees[0] for trees in n_best]
        references = [example["target"] for example in examples]
        return parseval([output.text for output in outputs], references), outputs

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """The metrics of the loss over all examples."""
        return compute_metrics(sums)

    def check_search(self, examples: Corpus, decode: DecodeConfig) -> None:
        """Raises UserError where `evaluate` would refuse to search so."""
        parts = [part for example in examples for part in self.parts(example["source"])]
        self._check(max((len(part.tokens) for part in parts), default=0), decode)

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """The `decode.num_outputs` best trees of each line, best first, in order.

        A blank line has a blank output, and a bracket within a word is -LRB- or -RRB- in the tree.
        A sentence of more than `max_source_length` tokens is parsed in parts, which are then joined
        under one root, with a warning that names the line, counted from `first_line`.
        """
        parts = [self.parts(line) for line in lines]
        requests = [
            self.writing.request(part, number)
            for number, of_line in enumerate(parts, first_line)
            for part in of_line
        ]
        found = iter(self._search(params, requests, decode))
        for number, of_line in enumerate(parts, first_line):
            if len(of_line) > 1:
                logger.warning(
                    "line %d is too long: it is parsed in %d parts, joined under one root "
                    "(data.max_source_length is %d)",
                    *(number, len(of_line), self.max_source_length),
                )
            outputs = [self.writing.trees(part, next(found)) for part in of_line]
            ranks = zip(*outputs, strict=False) if outputs else [()]
            yield [_together(of_parts) for of_parts in ranks]

    def parts(self, line: str) -> list[Part]:
        """The words of a line, as many at a time as the model reads together."""
        return parts_of(self.tokenizers.text("source"), line, self.max_source_length)

    def _search(
        self, params: Params, requests: Sequence[Request], decode: DecodeConfig
    ) -> list[Found]:
        self._check(0, decode)
        search = functools.partial(self.search, params, decode=decode)
        return search_in_batches(search, requests, decode.batch_size)

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
        """A sentence and its tree as the model reads them; of one that is too long, what it reads
        first."""
        part = self._first(source)
        if target is None:
            [found] = self._search(params, [self.writing.request(part, 1)], decode)
            target = str(self.writing.trees(part, found)[0][0])
        given = {"source": " ".join(part.words), "target": target}
        written = self._tokens(given)["target"]
        return pair_inputs(self.tokenizers, given, part.tokens, written)

    def beam_tree(self, params: Params, line: str, decode: DecodeConfig) -> BeamTree:
        """How a beam search comes to the trees of a line; UserError for another search."""
        part = self._first(line)
        self._check(len(part.tokens), decode)
        pieces = self.tokenizers.text("target").pieces
        return self.search.beam_tree(params, self.writing.request(part, 1), decode, pieces)

    def _first(self, line: str) -> Part:
        if parts := self.parts(line):
            return parts[0]
        raise UserError("there is no word to parse")

    @functools.cached_property
    def search(self) -> Seq2SeqSearch:
        """Finds trees for sentences, as tokens; without tokenizers, anything."""
        constraint = self.text.constraint if self.text else None
        return Seq2SeqSearch(self.model, self.tokenizers.specials("target"), constraint)

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """log P(tree | sentence) of each pair in nats, EOS included, among all that the model may
        write, trees or not.

        Raises:
          UserError: as for `Translation`, or a target is no tree over the words of its source.
        """
        pairs = [
            self._tokens({"source": source, "target": target})
            for source, target in zip(sources, targets, strict=True)
        ]
        require_reach(self.model.config, pairs)
        vocab_size = self.model.config.target_vocab_size
        size = functools.partial(row_bytes, self.model.config, vocab_size)
        return score_pairs(self.losses.scores, params, pairs, batch_size, size)


def _together(parts: Sequence[tuple[Tree, float]]) -> Prediction:
    """The output of a line, whose parts were parsed one by one; blank without any."""
    if not parts:
        return Prediction("", 0.0)
    trees, scores = zip(*parts, strict=True)
    return Prediction(str(join_trees(trees)), sum(scores))

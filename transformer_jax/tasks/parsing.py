"""Constituency parsing: a sentence in, its tree out (section 6.3; Vinyals et al. 2015)."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from transformer_jax.analysis.reading import Reading
from transformer_jax.data.examples import Corpus, Example, Features
from transformer_jax.decoding import BeamTree
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.pairs import PairScore, require_reach, row_bytes, score_pairs
from transformer_jax.inference.requests import Found, Request, find_all
from transformer_jax.inference.source_search import SourceSearch
from transformer_jax.inference.tree_constraint import SHORTEST
from transformer_jax.metrics import metrics_of
from transformer_jax.models.source_to_target import SourceToTarget
from transformer_jax.scoring.parseval import parseval
from transformer_jax.tasks.interface import (
    Batch,
    LossOptions,
    LossSums,
    Params,
    Prediction,
    TaskParts,
)
from transformer_jax.tasks.pair_losses import PairLosses
from transformer_jax.tasks.readings import pair_reading
from transformer_jax.tasks.sentences import Part, TreeWriting, parts_of, tree_over_words
from transformer_jax.tasks.translation import Translation
from transformer_jax.tokenization import Symbols, Tokenizers
from transformer_jax.trees import Tree, joined

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Parsing:
    """The task of an encoder-decoder on {"source", "target"}: words, separated by spaces, and their
    tree in brackets.

    The decoder writes the tree in the tokens of `trees.linear`, and under a constraint: each output
    is a tree over exactly the words of its sentence.

    Attributes:
      model: maps source and shifted target to logits.
      tokenizers: of the sides "source", text, and "target", symbols.
      max_source_length, max_target_length: slots of a packed row, special tokens included.
      loss_options: of the training loss.
      text: how trees become tokens; None where no text is read, as in benchmarks.
    """

    model: SourceToTarget
    tokenizers: Tokenizers
    max_source_length: int
    max_target_length: int
    loss_options: LossOptions
    text: TreeWriting | None
    read: ClassVar[Sequence[str]] = PairLosses.read
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
            text=TreeWriting(symbols) if isinstance(symbols, Symbols) else None,
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
    def losses(self) -> PairLosses:
        """Of the model, on sentences and trees."""
        predicts = self.text.predicts if self.text else None
        specials = self.tokenizers.specials("target")
        return PairLosses(self.model, specials, self.loss_options, predicts)

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters."""
        return self.losses.init(rng)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """As `PairLosses`."""
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
        return metrics_of(sums)

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
        return find_all(search, requests, decode.batch_size)

    def _check(self, longest: int, decode: DecodeConfig) -> None:
        least = SHORTEST - self.tokenizers.specials("source").translation.size()
        if decode.max_extra_length < least:
            raise UserError(
                f"decode.max_extra_length is {decode.max_extra_length}, and a tree takes {least} "
                "tokens more than its sentence at least, most of them twice as many as it has words"
            )
        self.search.check(longest, decode)

    def reading(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> Reading:
        """A sentence and its tree as the model reads them; of one that is too long, what it reads
        first."""
        part = self._first(source)
        if target is None:
            [found] = self._search(params, [self.writing.request(part, 1)], decode)
            target = str(self.writing.trees(part, found)[0][0])
        given = {"source": " ".join(part.words), "target": target}
        written = self._tokens(given)["target"]
        return pair_reading(self.tokenizers, given, part.tokens, written)

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
    def search(self) -> SourceSearch:
        """Finds trees for sentences, as tokens; without tokenizers, anything."""
        constraint = self.text.constraint if self.text else None
        return SourceSearch(self.model, self.tokenizers.specials("target"), constraint)

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
    return Prediction(str(joined(trees)), sum(scores))

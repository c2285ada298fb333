"""Translation: sentence pairs in, BLEU out (sections 5 and 6.1).

B batch, S source, T target, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.token_cache import TokenCacheOptions, tokenize_pairs
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.decoding import BeamTree, truncate_at_eos
from transformer_jax.inference.config import SEARCH_FIELDS, DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, pair_inputs, source_tokens
from transformer_jax.inference.pairs import PairScore, require_reach, row_bytes, score_pairs
from transformer_jax.inference.seq2seq_search import Request, Seq2SeqSearch, search_in_batches
from transformer_jax.metrics import compute_metrics
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.scoring import METRICS, best_by
from transformer_jax.tasks.interface import (
    Batch,
    LossOptions,
    LossSums,
    Params,
    Prediction,
    TaskParts,
)
from transformer_jax.tasks.losses import Seq2SeqLosses
from transformer_jax.tokenization import Tokenizer, Tokenizers


@dataclasses.dataclass(frozen=True)
class Translation:
    """The task of an encoder-decoder on pairs {"source": str, "target": str}.

    Attributes:
      model: maps source and shifted target to logits.
      tokenizers: of the sides "source" and "target".
      max_source_length, max_target_length: slots of a packed row, special tokens included.
      loss_options: of the training loss.
      metric: the entry of `scoring.METRICS` that compares outputs with targets.
      caching: whether the tokens of large sets are kept.
    """

    model: Seq2Seq
    tokenizers: Tokenizers
    max_source_length: int
    max_target_length: int
    loss_options: LossOptions
    metric: str = "bleu"
    caching: TokenCacheOptions = TokenCacheOptions()
    read: ClassVar[Sequence[str]] = Seq2SeqLosses.read
    evaluates_by: ClassVar[Sequence[str]] = (
        *(field for field in SEARCH_FIELDS if field != "repetition_penalty"),
        *("search", "max_extra_length", "batch_size"),
    )
    predicts_by: ClassVar[Sequence[str]] = (*evaluates_by, "num_outputs")

    @property
    def best_by(self) -> str:
        """What the best checkpoint has most of."""
        return best_by(self.metric)

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"source": self.max_source_length, "target": self.max_target_length}

    @classmethod
    def build(cls, parts: TaskParts) -> "Translation":
        """The task of a run.

        Raises:
          ValueError: the model does not go with the task, embeddings are shared between
            vocabularies that are not, or the positions do not reach as far as the rows.
        """
        data, sizes = parts.data, parts.vocab_sizes
        return cls(
            model=parts.make_model(
                Seq2Seq,
                reach=max(data.max_source_length, data.max_target_length),
                source_vocab_size=sizes["source"],
                target_vocab_size=sizes["target"],
            ),
            tokenizers=parts.tokenizers,
            max_source_length=data.max_source_length,
            max_target_length=data.max_target_length,
            loss_options=parts.loss,
            metric=parts.metric or "bleu",
            caching=parts.caching,
        )

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """The pairs as tokens; those of a large set are encoded once (`data.cache_dir`)."""
        return tokenize_pairs(examples, self.tokenizers, self.caching)

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """The special tokens around both sides."""
        frames = {side: self.tokenizers.specials(side).translation for side in self.lengths}
        return {
            side: np.array(frame.around(example[side].tolist()), np.int32)
            for side, frame in frames.items()
        }

    def _tokens(self, pair: Mapping[str, str]) -> dict[str, list[int]]:
        return {side: _framed(self.tokenizers.text(side), pair[side]) for side in self.lengths}

    @functools.cached_property
    def losses(self) -> Seq2SeqLosses:
        """Of the model, on pairs."""
        return Seq2SeqLosses(self.model, self.tokenizers.specials("target"), self.loss_options)

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters."""
        return self.losses.init(rng)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """As `Seq2SeqLosses`."""
        return self.losses(params, batch, rng)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """The metrics of the loss over all examples."""
        return compute_metrics(sums)

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """The metrics of the best outputs beside the targets, such as BLEU."""
        n_best = self.predict(params, [example["source"] for example in examples], decode)
        outputs = [hypotheses[0] for hypotheses in n_best]
        references = [example["target"] for example in examples]
        return METRICS[self.metric]([output.text for output in outputs], references), outputs

    def check_search(self, examples: Corpus, decode: DecodeConfig) -> None:
        """Raises UserError where `evaluate` would refuse to search so."""
        tokenizer = self.tokenizers.text("source")
        longest = max(len(_framed(tokenizer, example["source"])) for example in examples)
        self.search.check(min(longest, self.max_source_length), decode)

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """The `decode.num_outputs` best translations of each line, best first, in order.

        A blank line has a blank translation. A source of more than `max_source_length` tokens is
        cut there, and pieces unknown to the tokenizer are left to the model, each with a warning
        that names the line, counted from `first_line`.
        """
        return self.predict_with_prefixes(params, lines, [""] * len(lines), decode, first_line)

    def predict_with_prefixes(
        self,
        params: Params,
        lines: Sequence[str],
        prefixes: Sequence[str],
        decode: DecodeConfig,
        first_line: int = 1,
    ) -> Iterator[list[Prediction]]:
        """As `predict`; each translation starts with its line's prefix, which is best given in
        whole words. Scores are of what follows it."""
        encode = self.tokenizers.text("target").encode
        requests = [
            Request(self._encode_source(line, f"line {number}"), encode(prefix), number)
            for number, (line, prefix) in enumerate(zip(lines, prefixes, strict=True), first_line)
        ]
        around = self.tokenizers.specials("source").translation.size()
        worded = [request for request in requests if len(request.source) > around]
        search = functools.partial(self.search, params, decode=decode)
        found = search_in_batches(search, worded, decode.batch_size)
        results = {
            request.number: [
                Prediction(self._text(request.prefix, row), float(score))
                for row, score in zip(*outputs, strict=True)
                if score > -jnp.inf
            ]
            for request, outputs in zip(worded, found, strict=True)
        }
        for request in requests:
            yield results.get(request.number, [Prediction("", 0.0)])

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """A pair as the model reads it."""
        read = self._encode_source(source, "the text")
        if target is None:
            found, _ = self.search(params, [Request(read, number=1)], decode)
            specials = self.tokenizers.specials("target")
            written = [
                *specials.translation.head,
                *truncate_at_eos(found[0, 0].tolist(), specials.eos),
            ]
            target = self.tokenizers.text("target").decode(written)
        else:
            written = _framed(self.tokenizers.text("target"), target)
        return pair_inputs(self.tokenizers, {"source": source, "target": target}, read, written)

    def beam_tree(self, params: Params, line: str, decode: DecodeConfig) -> BeamTree:
        """How a beam search comes to the translations of a line; UserError for another search."""
        request = Request(self._encode_source(line), number=1)
        pieces = self.tokenizers.text("target").pieces
        return self.search.beam_tree(params, request, decode, pieces)

    def _encode_source(self, line: str, name: str | None = None) -> list[int]:
        return source_tokens(self.tokenizers.text("source"), line, self.max_source_length, name)

    def _text(self, prefix: Sequence[int], tokens: np.ndarray) -> str:
        """The output of a search for tokens [L] behind a prefix."""
        tokenizer = self.tokenizers.text("target")
        return tokenizer.decode(
            [*prefix, *truncate_at_eos(tokens.tolist(), tokenizer.specials.eos)]
        )

    @functools.cached_property
    def search(self) -> Seq2SeqSearch:
        """Finds outputs for sources, as tokens."""
        return Seq2SeqSearch(self.model, self.tokenizers.specials("target"))

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """log P(target | source) of each pair in nats, EOS included.

        Raises:
          UserError: a sequence goes beyond the positions that the model knows, or takes more memory
            than there is.
        """
        pairs = [
            self._tokens({"source": source, "target": target})
            for source, target in zip(sources, targets, strict=True)
        ]
        require_reach(self.model.config, pairs)
        vocab_size = self.model.config.target_vocab_size
        size = functools.partial(row_bytes, self.model.config, vocab_size)
        return score_pairs(self.losses.scores, params, pairs, batch_size, size)


def _framed(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.specials.translation.around(tokenizer.encode(text))

# SPDX-License-Identifier: Apache-2.0
"""Translation: sentence pairs, beam search and BLEU (sections 5 and 6.1).

B batch, S source, T target, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.token_cache import TokenCache, tokenize_pairs
from transformer_jax.data.batches.windows import Slices, TokenSlices, find_slices
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.decoding import truncate_at_eos
from transformer_jax.errors import UserError
from transformer_jax.inference.config import TARGET_FIELDS, DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, pair_inputs
from transformer_jax.inference.seq2seq_search import Request, Seq2SeqSearch
from transformer_jax.scoring import METRICS, best_by
from transformer_jax.tasks.base import Seq2SeqTask
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tasks.interface import Evaluation, Params, Prediction, TaskParts
from transformer_jax.tasks.line_warnings import LineWarnings, collect_warnings
from transformer_jax.tokenization import Frame, SampledTokenizer, Tokenizer

if TYPE_CHECKING:
    from transformer_jax.decoding.beam_tree import BeamTree


@dataclasses.dataclass(frozen=True, repr=False)
class TextPairs(Seq2SeqTask):
    """Base of the tasks that write a text for a text.

    Attributes:
      metric: entry of `scoring.METRICS` that compares outputs with targets.
      config: the section `task`, with options of the metric.
      caching: settings of the token cache.
    """

    metric: str = "bleu"
    config: TaskConfig = TaskConfig()
    caching: TokenCache = TokenCache()

    @property
    def best_by(self) -> str:
        return best_by(self.metric)

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        metric = parts.metric or "bleu"
        fields |= {"metric": metric, "config": parts.task, "caching": parts.caching}
        return super().build(parts, **fields)

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """Returns the pairs as tokens; those of a large set are cached (`data.cache_dir`)."""
        return tokenize_pairs(examples, self.tokenizers, self.caching)

    def drawn_tokens(self, example: Features, side: str) -> list[int]:
        """Tokens of a side, which are others of the same text with `tokenizers.sampling`."""
        tokenizer = self.tokenizers.text(side)
        tokens: list[int] = example[side].tolist()
        return tokenizer.resegment(tokens) if isinstance(tokenizer, SampledTokenizer) else tokens

    @property
    def source_frame(self) -> Frame:
        """Special tokens around a source."""
        return self.tokenizers.specials("source").translation

    def encode_pair(self, pair: Mapping[str, str]) -> dict[str, list[int]]:
        return {side: _encode(self.tokenizers.text(side), pair[side]) for side in self.lengths}

    def evaluate(self, params: Params, examples: Corpus, decode: DecodeConfig) -> Evaluation:
        """Returns the metrics of the best outputs, such as BLEU, and these outputs."""
        n_best = self.predict(params, [example["source"] for example in examples], decode)
        outputs = [hypotheses[0] for hypotheses in n_best]
        references = [example["target"] for example in examples]
        score = METRICS.configured(self.metric, self.config)
        return score([output.text for output in outputs], references), outputs

    def _encode_source(self, line: str, warnings: LineWarnings) -> list[int]:
        """Tokens of a source, cut at `max_source_length`, with special tokens."""
        tokenizer = self.tokenizers.text("source")
        frame = self.source_frame
        tokens = warnings.encode(tokenizer, line)
        room = max(0, self.max_source_length - frame.size())
        if not tokens:
            message = f"{warnings.name} is blank, and so is its output"
            warnings.add(message, "are blank, and so are their outputs")
        limit = f"data.max_source_length is {self.max_source_length}"
        return frame.around(warnings.cut(tokens, room, limit))


@dataclasses.dataclass(frozen=True, repr=False)
class Translation(TextPairs):
    """Translation, or any mapping of text to text, with an encoder-decoder."""

    evaluates_by: ClassVar[Sequence[str]] = tuple(
        field for field in TARGET_FIELDS if field != "num_outputs"
    )
    predicts_by: ClassVar[Sequence[str]] = TARGET_FIELDS

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """Adds the special tokens of both sides."""
        features = {}
        for side in self.lengths:
            frame = self.tokenizers.specials(side).translation
            features[side] = np.array(frame.around(self.drawn_tokens(example, side)), np.int32)
        return features

    def slices(self, items: Sequence[Any]) -> Slices | None:
        """The features of all items as slices of arrays, if `preprocess` is the one here."""
        if type(self).preprocess is not Translation.preprocess:
            return None
        return find_slices(items, self._framed_slices)

    def _framed_slices(self, pairs: Sequence[Any]) -> dict[str, TokenSlices] | None:
        slices: dict[str, TokenSlices] | None = getattr(pairs, "slices", None)
        if slices is None:
            return None
        framed = {}
        for side in self.lengths:
            frame = self.tokenizers.specials(side).translation
            framed[side] = dataclasses.replace(slices[side], head=frame.head, tail=frame.tail)
        return framed

    def check_search(self, examples: Corpus, decode: DecodeConfig) -> None:
        references = [examples[0]["target"]]
        scores = METRICS.configured(self.metric, self.config)(references, references)
        if self.metric not in scores:
            raise UserError(
                f"config.task.metric {self.metric!r} returns {', '.join(scores)}, and no "
                f"{self.metric!r}, which selects the best checkpoint: register it under a name "
                "that it returns"
            )
        tokenizer = self.tokenizers.text("source")
        longest = max(len(_encode(tokenizer, example["source"])) for example in examples)
        self.search.check(min(longest, self.max_source_length), decode)

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields the `decode.num_outputs` best translations of each line, best first, in order.

        A blank line has a blank translation. A source of more than `max_source_length` tokens is
        cut, and pieces unknown to the tokenizer are left to the model; each with a warning that
        names the line, counted from `first_line`.
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
        """Like `predict`; each translation starts with its line's prefix, which should consist of
        whole words. Scores do not count the prefix."""
        target = self.tokenizers.text("target")
        requests = []
        with collect_warnings(len(lines)) as warnings:
            for number, (line, prefix) in enumerate(zip(lines, prefixes, strict=True), first_line):
                source_ids = self._encode_source(line, warnings.about(number))
                about_prefix = warnings.about(number, f"the prefix of line {number}")
                prefix_ids = about_prefix.encode(target, prefix)
                requests.append(Request(source_ids, prefix_ids, number))
        frame_size = self.tokenizers.specials("source").translation.size()
        not_blank = [request for request in requests if len(request.source) > frame_size]
        n_best = self.search.find_all(params, not_blank, decode)
        results = {
            request.number: [
                Prediction(self._decode(request.prefix, row), float(score))
                for row, score in zip(*outputs, strict=True)
                if score > -jnp.inf
            ]
            for request, outputs in zip(not_blank, n_best, strict=True)
        }
        for request in requests:
            yield results.get(request.number, [Prediction("", 0.0)])

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        with collect_warnings() as warnings:
            source_ids = self._encode_source(source, warnings)
        if target is None:
            tokens, _ = self.search(params, [Request(source_ids, number=1)], decode)
            specials = self.tokenizers.specials("target")
            output = truncate_at_eos(tokens[0, 0].tolist(), specials.eos)
            target_ids = [*specials.translation.head, *output]
            target = self.tokenizers.text("target").decode(target_ids)
        else:
            target_ids = _encode(self.tokenizers.text("target"), target)
        texts = {"source": source, "target": target}
        return pair_inputs(self.model, self.tokenizers, texts, source_ids, target_ids)

    def beam_tree(self, params: Params, line: str, decode: DecodeConfig) -> "BeamTree":
        request = Request(self._encode_source(line, LineWarnings()), number=1)
        return self.search.beam_tree(params, request, decode)

    @functools.cached_property
    def search(self) -> Seq2SeqSearch:
        sides = self.tokenizers
        tokenizer = sides.text("target") if "target" in sides.sides else None
        return Seq2SeqSearch(self.model, sides.specials("target"), tokenizer=tokenizer)

    def _decode(self, prefix: Sequence[int], tokens: np.ndarray) -> str:
        """Text of an output [L] of the search, with its prefix."""
        tokenizer = self.tokenizers.text("target")
        output = truncate_at_eos(tokens.tolist(), tokenizer.specials.eos)
        return tokenizer.decode([*prefix, *output])


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.specials.translation.around(tokenizer.encode(text))

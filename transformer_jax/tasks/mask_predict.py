# SPDX-License-Identifier: Apache-2.0
"""Mask-predict: pairs whose targets are written in a few passes (Ghazvininejad et al. 2019).

B batch, T slots of a target, K lengths tried for a source, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.decoding import Unmasking
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import PaddedBatch, Pair
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.models import apply_method, apply_model
from transformer_jax.models.encoder_decoder import EncoderDecoder, PackedTokens
from transformer_jax.nn.layers import looks_ahead
from transformer_jax.runtime import platform
from transformer_jax.tasks.corruptions import bound_masks
from transformer_jax.tasks.diffusion import make_unmasking, row_keys
from transformer_jax.tasks.interface import Batch, Params, Prediction, Supervised, TaskParts
from transformer_jax.tasks.line_warnings import LineWarnings, read_lines
from transformer_jax.tasks.losses import row_inputs
from transformer_jax.tasks.translation import TextPairs
from transformer_jax.tokenization import Frame, SpecialTokens

DRAWS = 64
"""Masks of a target whose losses estimate its score; all of them if there are no more."""


@dataclasses.dataclass(frozen=True, repr=False)
class MaskPredict(TextPairs):
    """Pairs with an encoder-decoder whose decoder sees the whole target and fills masked tokens.

    The number of masked tokens is drawn uniformly for each visit of a pair. A source begins with
    [MASK], whose place in the encoder predicts the length of the target: class n of the vocabulary
    is a target of n tokens (the paper has a LENGTH token, and embeddings of lengths). In the
    logits this prediction has the place of the target's first token, the start token.
    """

    models: ClassVar[Sequence[type[Any]]] = (EncoderDecoder,)
    sees_targets: ClassVar[bool] = False
    evaluates_by: ClassVar[Sequence[str]] = (
        *("search", "beam_size", "temperature", "seed", "batch_size"),
    )
    predicts_by: ClassVar[Sequence[str]] = (*evaluates_by, "num_outputs")

    @property
    def lengths(self) -> dict[str, int]:
        return {**super().lengths, "labels": self.max_target_length}

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        """Makes the task of a run.

        Raises:
          ValueError: the parts do not fit together, the decoder does not see whole targets, the
            tokenizers have no [MASK], or the vocabulary has fewer classes than there are lengths.
        """
        task = super().build(parts, **fields)
        if not all(looks_ahead(parts.model)):
            raise ValueError(
                "task mask_predict predicts tokens from both sides, and this decoder sees those "
                "before alone; set model.attention_layer to 'bidirectional'"
            )
        parts.require_mask()
        size = parts.vocab_sizes["target"]
        if size < task.max_target_length:
            raise ValueError(
                f"data.max_target_length is {task.max_target_length}, and the vocabulary of "
                f"{size} tokens has too few classes for the lengths of targets; lower it"
            )
        return task

    @property
    def specials(self) -> SpecialTokens:
        return self.tokenizers.specials("target")

    @property
    def mask(self) -> int:
        assert self.specials.mask is not None  # checked by `build`
        return self.specials.mask

    @property
    def source_frame(self) -> Frame:
        mask = self.tokenizers.specials("source").mask
        assert mask is not None  # checked by `build`
        frame = super().source_frame
        return dataclasses.replace(frame, head=(mask, *frame.head))

    def encode_pair(self, pair: Mapping[str, str]) -> dict[str, list[int]]:
        """Tokens of the source, with special tokens, and of the target, without."""
        source = self.tokenizers.text("source").encode(pair["source"])
        target = self.tokenizers.text("target").encode(pair["target"])
        return {"source": self.source_frame.around(source), "target": target}

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """Returns a pair with masked tokens, drawn at each visit, as `row`."""
        target = np.array(self.drawn_tokens(example, "target"), np.int32)
        is_hidden = np.zeros(len(target), bool)
        if len(target):
            count = int(rng.integers(1, len(target) + 1))
            is_hidden[rng.permutation(len(target))[:count]] = True
        source = self.source_frame.around(self.drawn_tokens(example, "source"))
        return self.row(source, target, is_hidden, has_length=True)

    def row(
        self, source: Sequence[int], target: np.ndarray, is_hidden: np.ndarray, has_length: bool
    ) -> Features:
        """Features of a pair: "source"; "target", with the start token; "labels": 1 + the length
        and each hidden token, 0 elsewhere."""
        length = 1 + len(target) if has_length else 0
        inputs = np.where(is_hidden, self.mask, target)
        labels = np.where(is_hidden, 1 + target, 0)
        return {
            "source": np.array(source, np.int32),
            "target": np.append(self.specials.start, inputs).astype(np.int32),
            "labels": np.append(length, labels).astype(np.int32),
        }

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs, and the lengths and hidden tokens of a packed batch."""
        target, positions, segment_ids = row_inputs(batch, "target")
        from_source = (positions == 0) & (segment_ids > 0)
        inputs = (*row_inputs(batch, "source"), target, positions, segment_ids, from_source)
        labels = jnp.maximum(batch["labels"] - 1, 0)
        return Supervised(inputs, labels, batch["labels"] > 0)

    def scored_rows(self, pair: Pair, warnings: LineWarnings) -> Iterator[tuple[float, Features]]:
        """Yields the row of the length, and masked targets (`bound_masks`), estimated from `DRAWS`
        masks for targets with more of them: the weighted scores add up to a lower bound of
        log P(target | source).

        Raises:
          UserError: a target is longer than a row.
        """
        target = np.array(pair["target"], np.int32)
        if len(target) >= self.max_target_length:
            raise UserError(
                f"score: the target of {warnings.name} has {len(target)} tokens, more than the "
                f"{self.max_target_length - 1} of a row (data.max_target_length); make it shorter"
            )
        source = [*pair["source"]]
        rng = np.random.default_rng(target.tolist())  # the same masks wherever the pair is
        yield 1.0, self.row(source, target, np.zeros(len(target), bool), has_length=True)
        for is_hidden, weight in bound_masks(len(target), DRAWS, rng):
            yield weight, self.row(source, target, is_hidden, has_length=False)

    def check_search(self, examples: Corpus, decode: DecodeConfig) -> None:
        """Raises UserError if the search writes from left to right."""
        self.unmasking(decode)

    def unmasking(self, decode: DecodeConfig) -> Unmasking:
        """The search of `decode`, which writes no end token: the length is known.

        Raises:
          UserError: it is none that fills masks, or gives fewer outputs than are asked for.
        """
        if decode.num_outputs > decode.beam_size:
            raise UserError(
                f"decode: num_outputs is {decode.num_outputs}, and the outputs are those of the "
                f"{decode.beam_size} likeliest lengths (beam_size); raise beam_size"
            )
        unmasking = make_unmasking(decode, self.specials)
        banned = (*unmasking.banned_ids, self.specials.eos)
        return dataclasses.replace(unmasking, banned_ids=banned)

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields the `decode.num_outputs` best outputs of each line, one for each of the
        `decode.beam_size` likeliest lengths; a score is the mean log-probability of a token when
        it was chosen, in nats. Lines are read as by `Translation.predict`.

        Raises:
          UserError: the search writes from left to right, or gives fewer outputs.
        """
        unmasking = self.unmasking(decode)
        rows = read_lines(lines, first_line, self._encode_source)
        blank = self.source_frame.size()
        sources = {i: row for i, row in enumerate(rows, first_line) if len(row) > blank}
        batch = PaddedBatch(_Request([self.mask], 1, (0, 0)), self._arrays)
        tried = [_Request(source, 0, (number, 0)) for number, source in sources.items()]
        program = functools.partial(self._likeliest_lengths, count=decode.beam_size)
        requests = [
            _Request(source, int(length), (number, candidate))
            for (source, _, (number, _)), lengths in batch.run_all(
                program, params, tried, decode.batch_size
            )
            for candidate, length in enumerate(lengths)
        ]
        program = functools.partial(self._fill, unmasking=unmasking, seed=decode.seed)
        filled = batch.run_all(program, params, requests, decode.batch_size)
        outputs: dict[int, list[Prediction]] = {}
        for request, (tokens, log_probs) in filled:
            written = slice(1, 1 + request.length)
            text = self.tokenizers.text("target").decode(tokens[written].tolist())
            output = Prediction(text, float(log_probs[written].mean()))
            outputs.setdefault(request.keys[0], []).append(output)
        for number in range(first_line, first_line + len(lines)):
            n_best = outputs.get(number, [Prediction("", 0.0)])
            yield sorted(n_best, key=lambda output: -output.score)[: decode.num_outputs]

    def _arrays(self, requests: Sequence["_Request"]) -> dict[str, np.ndarray]:
        """A batch of sources, and of targets that are all masks."""
        start = self.specials.start
        rows = [{"source": r.source, "target": [start, *[self.mask] * r.length]} for r in requests]
        keys = np.array([request.keys for request in requests], np.int32)
        return {**padded_batch(rows), "keys": keys}

    @platform.compiled_method(static_argnames="count")
    def _likeliest_lengths(self, params: Params, batch: Batch, count: int) -> jax.Array:
        """Likeliest numbers of target tokens, [B, K]."""
        start = tuple(x[:, :1] for x in row_inputs(batch, "target"))
        from_source = jnp.ones_like(start[0], bool)
        inputs = (*row_inputs(batch, "source"), *start, from_source)
        logits = apply_model(self.model, params, *inputs)[:, 0, : self.max_target_length]
        most = min(count, self.max_target_length - 1)
        return 1 + jax.lax.top_k(logits[:, 1:], most)[1]

    @platform.compiled_method(static_argnames=("unmasking", "seed"))
    def _fill(
        self, params: Params, batch: Batch, unmasking: Unmasking, seed: int
    ) -> tuple[jax.Array, jax.Array]:
        """Filled targets, and log-probabilities, [B, T] each. "keys" of the batch name its rows."""
        source, positions, segment_ids = row_inputs(batch, "source")
        encoded = apply_method(self.model, params, "encode", source, positions, segment_ids)
        target, *places = row_inputs(batch, "target")

        def logits_of(tokens: jax.Array) -> jax.Array:
            packed = PackedTokens(tokens, *places)
            return apply_method(self.model, params, "target_logits", encoded, segment_ids, packed)

        return unmasking(logits_of, target, self.mask, row_keys(batch["keys"], seed))


class _Request(NamedTuple):
    """A source with its special tokens, the length of its target, and numbers that name both."""

    source: Sequence[int]
    length: int
    keys: tuple[int, int]

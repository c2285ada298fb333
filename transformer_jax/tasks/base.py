# SPDX-License-Identifier: Apache-2.0
"""Base classes of the built-in tasks, for training on next tokens, on pairs, and on labels.

A task of your own may subclass one of them or implement `interface.Task` alone.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batches.loss_masks import loss_mask_features, resegmented
from transformer_jax.data.batches.windows import Slices, find_slices
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import Pair, PairScore, WeightedRow, weighted_scores
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.losses import Distillation, TokenLosses
from transformer_jax.metrics import compute_metrics
from transformer_jax.models import apply_model
from transformer_jax.models.classifier import BODIES
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import Seq2Seq, shift_right
from transformer_jax.runtime import platform
from transformer_jax.summary import Summarized
from transformer_jax.tasks.interface import (
    Batch,
    Evaluation,
    Frozen,
    LossOptions,
    LossSums,
    Params,
    Prediction,
    Supervised,
    TaskParts,
)
from transformer_jax.tasks.line_warnings import LineWarnings, collect_warnings
from transformer_jax.tasks.losses import (
    ContextTarget,
    packed_loss,
    r_drop_losses,
    row_inputs,
    row_scores,
    split_tokens,
    with_loss_mask,
)
from transformer_jax.tokenization import SampledTokenizer, Tokenizers


class BaseTask(Summarized):
    """Default methods: the model reads one text, `prepare` and `preprocess` return their input, the
    loss is that of the labels (`supervised`), and all metrics are those of the loss.

    Attributes:
      models: classes of models that the task accepts.
      vocab_sizes: {field of the model's config: side whose vocabulary has that size}.
      length_fields: fields of the task, and of the section `data`: slots of a row.
      sees_targets: whether a decoder that looks ahead would see what it should predict.
      features: those that `preprocess` returns, with `max_length` slots of a row each.
      decodes: False if outputs come from one pass of the model: then a validation scores them all.
      predictor: method of the model whose results the loss reads; "__call__" if that alone gives
        the logits.
    """

    model: Any
    tokenizers: Tokenizers
    max_length: int
    loss_options: LossOptions
    models: ClassVar[Sequence[type[Any]]]
    vocab_sizes: ClassVar[Mapping[str, str]] = {"vocab_size": "text"}
    length_fields: ClassVar[Sequence[str]] = ("max_length",)
    sees_targets: ClassVar[bool] = False
    features: ClassVar[Sequence[str]]
    read: ClassVar[Sequence[str]]
    supervised: Callable[[Batch], Supervised]
    predict: Callable[..., Iterator[list[Prediction]]]
    evaluates_by: ClassVar[Sequence[str]] = ()
    decodes: ClassVar[bool] = True
    predictor: ClassVar[str] = "unprojected"

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        """Makes the task of a run, with the fields that a subclass adds.

        Raises:
          ValueError: the model is none of `models`, embeddings are shared between vocabularies that
            are not, or the positions do not reach the row length.
        """
        lengths = {name: getattr(parts.data, name) for name in cls.length_fields}
        fields["model"] = cls.make_model(parts, max(lengths.values()))
        fields |= {"tokenizers": parts.tokenizers, "loss_options": parts.loss}
        return cls(**lengths, **fields)

    @classmethod
    def make_model(cls, parts: TaskParts, reach: int) -> Any:
        """Makes the model, whose longest row has `reach` tokens."""
        sizes = {name: parts.vocab_sizes[side] for name, side in cls.vocab_sizes.items()}
        return parts.make_model(*cls.models, reach=reach, sees_targets=cls.sees_targets, **sizes)

    def summary(self) -> Mapping[str, Any]:
        """The model, the vocabularies and the length of a row."""
        lengths = {f"{name} length": length for name, length in self.lengths.items()}
        return {"model": type(self.model).__name__, **self.tokenizers.summary(), **lengths}

    @property
    def lengths(self) -> dict[str, int]:
        return dict.fromkeys(self.features, self.max_length)

    def init(self, rng: jax.Array) -> Params:
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row, row)["params"]

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        return examples

    def preprocess(self, example: Any, rng: np.random.Generator) -> Features:
        """Returns the item, which has the features already."""
        features: Features = example
        return features

    def slices(self, items: Sequence[Any]) -> Slices | None:
        """The features of all items as slices of arrays, equal to those that `preprocess` makes;
        None if it must make them."""
        return None

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen) -> LossSums:
        """Returns the sums of the training loss over the labels that count."""
        token_losses, counted = self.token_losses(params, batch, rng, frozen)
        return packed_loss(batch, self.read, token_losses, counted)

    def token_losses(
        self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen
    ) -> tuple[TokenLosses, jax.Array]:
        """Losses of all labels, [B, M] each: in training with R-Drop or a teacher, if the options
        have them. Also returns which labels count."""
        options = self.loss_options
        inputs, labels, counted = self.supervised(batch)
        predict = functools.partial(apply_model, self.model, params, rng=rng, method=self.predictor)
        if rng is not None and options.r_drop:
            return r_drop_losses(predict, inputs, labels, options), counted
        predicted = predict(*inputs)
        loss = options.token_loss
        if rng is None or options.teacher is None:
            return loss.of(predicted, labels, exact=rng is None), counted
        assert isinstance(loss, Distillation)
        taught = options.teacher.predictions(frozen["teacher"], batch, inputs, self.predictor)
        return loss.of_taught(predicted, taught, labels), counted

    @platform.compiled_method()
    def scores(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Scores of the rows of a packed batch (`row_scores`)."""
        return row_scores(self.model, params, self.supervised(batch), self.loss_options)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Returns loss, perplexity and accuracy of a token."""
        return compute_metrics(sums)

    def evaluate(self, params: Params, examples: Corpus, decode: DecodeConfig) -> Evaluation:
        """Returns no metrics and no outputs: the loss alone is reported."""
        return {}, []


def preprocess_sampled(task: Any, example: Any, rng: np.random.Generator) -> Features:
    """Features of an item whose text gets tokens drawn by `rng` (`tokenizers.sampling`), or its
    usual tokens if the others do not fit into a row: sampling leaves no example out."""
    sampled = dataclasses.replace(task, tokenizers=task.tokenizers.sampled(rng))
    features: Features = sampled.preprocess(example, rng)
    if all(len(features[name]) <= length for name, length in task.lengths.items()):
        return features
    usual: Features = task.preprocess(example, rng)
    return usual


@dataclasses.dataclass(frozen=True, repr=False)
class TextTask(BaseTask):
    """Base of the tasks on one text.

    Attributes:
      model: one of the classes `models`.
      tokenizers: tokenizers of the side "text", and of others that a subclass has.
      max_length: slots of a row.
      loss_options: settings of the training loss.
    """

    model: Any
    tokenizers: Tokenizers
    max_length: int
    loss_options: LossOptions
    read: ClassVar[Sequence[str]] = ("text",)
    best_by: ClassVar[str] = "-loss"


class ScoringTask(BaseTask):
    """Base of the tasks that score a target given its source.

    Attributes:
      pair_tokens: number, source and target of a line -> what `score_tokens` scores.
    """

    pair_tokens: Callable[[int, str, str], Any]

    def scored_rows(self, pair: Any, warnings: LineWarnings) -> Iterator[tuple[float, Pair]]:
        """Yields the features of rows, with the weights of their scores in that of the pair."""
        raise NotImplementedError

    def score(
        self,
        params: Params,
        sources: Sequence[str],
        targets: Sequence[str],
        batch_size: int,
        first_line: int = 1,
    ) -> list[PairScore]:
        """Returns log P(target | source) of each pair in nats, as `scored_rows` define it."""
        numbers = range(first_line, first_line + len(sources))
        pairs = [self.pair_tokens(*line) for line in zip(numbers, sources, targets, strict=True)]
        return self.score_tokens(params, pairs, batch_size, numbers)

    def score_tokens(
        self, params: Params, pairs: Sequence[Any], batch_size: int, numbers: Sequence[int] = ()
    ) -> list[PairScore]:
        """Scores pairs of tokens, at most `batch_size` rows at once. Messages name their lines:
        `numbers`, which are by default from 1.

        Raises:
          UserError: as of `scored_rows`, or a row exceeds the positions that the model knows, or
            the available memory.
        """
        numbers = numbers or range(1, 1 + len(pairs))
        rows: list[WeightedRow] = []
        with collect_warnings(len(set(numbers))) as warnings:
            for index, (number, pair) in enumerate(zip(numbers, pairs, strict=True)):
                for weight, row in self.scored_rows(pair, warnings.about(number)):
                    rows.append((index, weight, row))
        return weighted_scores(self.scores, params, rows, len(pairs), batch_size, self.model.config)


@dataclasses.dataclass(frozen=True, repr=False)
class CausalTask(TextTask, ScoringTask):
    """Base of the tasks of a decoder-only model, which maps tokens to logits of the next token.

    `max_length` is the context, too: the tokens that the model sees at once.
    """

    model: DecoderOnly
    models: ClassVar[Sequence[type[Any]]] = (DecoderOnly,)
    sees_targets: ClassVar[bool] = True
    read: ClassVar[Sequence[str]] = ("input",)

    def preprocess(self, example: Any, rng: np.random.Generator) -> Features:
        """Returns the item, which has the features already, or its text in other tokens."""
        features = super().preprocess(example, rng)
        tokenizer = self.tokenizers.sides.get("text")
        if isinstance(tokenizer, SampledTokenizer):
            return resegmented(features, tokenizer.resegment)
        return features

    def slices(self, items: Sequence[Any]) -> Slices | None:
        if type(self).preprocess is not CausalTask.preprocess:
            return None
        return find_slices(items, lambda part: getattr(part, "slices", None))

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs and the next tokens of a packed batch."""
        return Supervised(row_inputs(batch, "input"), batch["target"], _counted(batch))

    def log_probs(self, params: Params, batch: Batch, rng: jax.Array | None) -> jax.Array:
        """log P of each target that counts in nats, float32 [B, T]; 0 elsewhere."""
        inputs = row_inputs(batch, "input")
        predicted = apply_model(self.model, params, *inputs, rng=rng, method="unprojected")
        token_losses = self.loss_options.unregularized.token_loss.of(predicted, batch["target"])
        return jnp.where(_counted(batch), -token_losses.losses, 0.0)  # `nll` has no gradient

    def pair_tokens(self, number: int, source: str, target: str) -> ContextTarget:
        """Tokens that are read of the pair of a line, and those that are scored."""
        return split_tokens(self.tokenizers.text("text"), source, target)

    def scored_rows(
        self, pair: ContextTarget, warnings: LineWarnings
    ) -> Iterator[tuple[float, Features]]:
        """Yields the row of a pair, whose score is that of the target's own tokens, without an end
        token. An empty source is the beginning of a text; an empty target is certain.

        Of a pair longer than the context the last tokens are read, with a warning. Raises UserError
        if a target alone is longer.
        """
        source, target = pair
        if not target:
            return
        limit = f"than the model sees at once (data.max_length is {self.max_length})"
        if len(target) > self.max_length:
            raise UserError(
                f"score: the target of {warnings.name} has {len(target)} tokens, more {limit}; "
                "make it shorter"
            )
        room = self.max_length + 1 - len(target)
        if len(source) > room:
            count = len(source) + len(target) - 1
            message = f"{warnings.name} has {count} tokens, more {limit}; its first"
            several = f"have more tokens {limit}; their first ones are not read"
            warnings.add(f"{message} {len(source) - room} are not read", several)
        yield 1.0, loss_mask_features(*with_loss_mask(source[-room:], target))


def _counted(batch: Batch) -> jax.Array:
    """Mask of the targets that count, bool [B, T]."""
    return batch.get("counted", batch["target_segment_ids"]) > 0


@dataclasses.dataclass(frozen=True, repr=False)
class Seq2SeqTask(ScoringTask):
    """Base of the tasks of an encoder-decoder on pairs {"source": str, "target": str}.

    Attributes:
      model: maps source and shifted target to logits.
      tokenizers: tokenizers of the sides "source" and "target".
      max_source_length, max_target_length: slots of a packed row, special tokens included.
      loss_options: settings of the training loss.
    """

    model: Seq2Seq
    tokenizers: Tokenizers
    max_source_length: int
    max_target_length: int
    loss_options: LossOptions
    models: ClassVar[Sequence[type[Any]]] = (Seq2Seq,)
    vocab_sizes: ClassVar[Mapping[str, str]] = {
        "source_vocab_size": "source",
        "target_vocab_size": "target",
    }
    length_fields: ClassVar[Sequence[str]] = ("max_source_length", "max_target_length")
    sees_targets: ClassVar[bool] = True
    read: ClassVar[Sequence[str]] = ("source", "target")

    @property
    def lengths(self) -> dict[str, int]:
        return {"source": self.max_source_length, "target": self.max_target_length}

    def encode_pair(self, pair: Mapping[str, str]) -> dict[str, list[int]]:
        """Tokens of both sides, with special tokens."""
        raise NotImplementedError

    @property
    def predicts(self) -> tuple[int, ...] | None:
        """For each token of the targets' vocabulary the token that is predicted in its place; None:
        the token itself."""
        return None

    def init(self, rng: jax.Array) -> Params:
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, *[row] * 6)["params"]

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs, and the tokens of the target that it predicts: all but the
        forced ones at the beginning."""
        specials = self.tokenizers.specials("target")
        target, positions, segment_ids = row_inputs(batch, "target")
        shifted = shift_right(target, positions, specials.start)
        inputs = (*row_inputs(batch, "source"), shifted, positions, segment_ids)
        labels = target if self.predicts is None else jnp.array(self.predicts, jnp.int32)[target]
        counted = (segment_ids > 0) & (positions >= len(specials.translation.head))
        return Supervised(inputs, labels, counted)

    def pair_tokens(self, number: int, source: str, target: str) -> Pair:
        return self.encode_pair({"source": source, "target": target})

    def scored_rows(self, pair: Pair, warnings: LineWarnings) -> Iterator[tuple[float, Pair]]:
        """Yields a pair of tokens, with special tokens, EOS included. The probability is that among
        all outputs that the model may write."""
        yield 1.0, pair


@dataclasses.dataclass(frozen=True, repr=False)
class LabelingTask(TextTask):
    """Base of the tasks of a body, one of the classes `models`, with a head, which maps tokens to
    logits of the labels."""

    models: ClassVar[Sequence[type[Any]]] = BODIES
    # Both stacks of an encoder-decoder read the text; other bodies read `vocab_size` alone.
    vocab_sizes: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("vocab_size", "source_vocab_size", "target_vocab_size"), "text"
    )
    head: ClassVar[type[Any]]
    label_side: ClassVar[str]
    predictor: ClassVar[str] = "__call__"
    best_by: ClassVar[str] = "accuracy"
    evaluates_by: ClassVar[Sequence[str]] = ("batch_size",)
    decodes: ClassVar[bool] = False

    @classmethod
    def make_model(cls, parts: TaskParts, reach: int) -> Any:
        return cls.head(
            super().make_model(parts, reach), num_classes=parts.vocab_sizes[cls.label_side]
        )

    @platform.compiled_method()
    def probabilities(self, params: Params, batch: Batch) -> jax.Array:
        """Probabilities of the labels of each row's one text, [B, 1, C], or of its tokens,
        [B, T, C]."""
        return jax.nn.softmax(apply_model(self.model, params, *row_inputs(batch, "text")))

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Returns the mean losses of a label, in nats."""
        metrics = compute_metrics(sums)
        return {name: metrics[name] for name in ("loss", "train_loss")}

# SPDX-License-Identifier: Apache-2.0
"""Base classes of the built-in tasks, one for each way to train.

`CausalTask` trains a decoder-only model on next tokens, `Seq2SeqTask` an encoder-decoder on pairs,
`LabelingTask` a model with a head on labels. A task of your own may subclass one of
them or implement `interface.Task` alone.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from transformer_jax.data.batches.loss_masks import resegmented
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.inference.batches import PairScore
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.metrics import compute_metrics
from transformer_jax.models.classifier import BODIES
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.summary import Summarized
from transformer_jax.tasks.interface import (
    Batch,
    Frozen,
    LossOptions,
    LossSums,
    Params,
    Prediction,
    Supervised,
    TaskParts,
)
from transformer_jax.tasks.losses import CausalLosses, Seq2SeqLosses, split_tokens
from transformer_jax.tokenization import SampledTokenizer, Tokenizers


class BaseTask(Summarized):
    """Default methods: `prepare` and `preprocess` return their input, and all metrics are those of
    the loss.

    Attributes:
      decodes: False if outputs come from one pass of the model: then a validation scores them all.
    """

    model: Any
    tokenizers: Tokenizers
    evaluates_by: ClassVar[Sequence[str]] = ()
    decodes: ClassVar[bool] = True

    def summary(self) -> Mapping[str, Any]:
        """The model, the vocabularies and the length of a row."""
        task: Any = self
        lengths = {f"{name} length": length for name, length in task.lengths.items()}
        return {"model": type(self.model).__name__, **self.tokenizers.summary(), **lengths}

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """Returns the examples."""
        return examples

    def preprocess(self, example: Any, rng: np.random.Generator) -> Features:
        """Returns the item, which has the features already."""
        features: Features = example
        return features

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Returns loss, perplexity and accuracy of a token."""
        return compute_metrics(sums)

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
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
class CausalTask(BaseTask):
    """Base of the tasks of a decoder-only model.

    Attributes:
      model: maps tokens to logits of the next token.
      tokenizers: tokenizers of the side "text".
      max_length: slots of a row, which is the context: the tokens that the model sees at once.
      loss_options: settings of the training loss.
    """

    model: DecoderOnly
    tokenizers: Tokenizers
    max_length: int
    loss_options: LossOptions
    read: ClassVar[Sequence[str]] = CausalLosses.read
    best_by: ClassVar[str] = "-loss"

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        """Makes the task of a run.

        Args:
          parts: parts of the run.
          **fields: fields that a subclass adds.

        Raises:
          ValueError: the model is not decoder-only, or its positions do not reach the row length.
        """
        length = parts.data.max_length
        vocab_size = parts.vocab_sizes["text"]
        return cls(
            model=parts.make_model(DecoderOnly, reach=length, vocab_size=vocab_size),
            tokenizers=parts.tokenizers,
            max_length=length,
            loss_options=parts.loss,
            **fields,
        )

    def preprocess(self, example: Any, rng: np.random.Generator) -> Features:
        """Returns the item, which has the features already, or its text in other tokens."""
        features = super().preprocess(example, rng)
        tokenizer = self.tokenizers.sides.get("text")
        if isinstance(tokenizer, SampledTokenizer):
            return resegmented(features, tokenizer.resegment)
        return features

    @functools.cached_property
    def losses(self) -> CausalLosses:
        """Losses and scores of the model."""
        return CausalLosses(self.model, self.loss_options)

    def init(self, rng: jax.Array) -> Params:
        """Returns initial parameters."""
        return self.losses.init(rng)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen) -> LossSums:
        """Returns the cross-entropy of each token that counts given all before it."""
        return self.losses(params, batch, rng, frozen)

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs and the labels of a packed batch."""
        return self.losses.supervised(batch)

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """Returns log P(target | source) of each pair in nats: of the target's own tokens, without
        an end token. An empty source is the beginning of a text.

        Of a pair longer than the context the last tokens are read, with a warning. Raises UserError
        if a target alone is longer.
        """
        tokenizer = self.tokenizers.text("text")
        pairs = [split_tokens(tokenizer, *pair) for pair in zip(sources, targets, strict=True)]
        return self.losses.score(params, pairs, self.max_length, batch_size)


@dataclasses.dataclass(frozen=True, repr=False)
class Seq2SeqTask(BaseTask):
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
    read: ClassVar[Sequence[str]] = Seq2SeqLosses.read

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"source": self.max_source_length, "target": self.max_target_length}

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        """Makes the task of a run.

        Args:
          parts: parts of the run.
          **fields: fields that a subclass adds.

        Raises:
          ValueError: the model is no encoder-decoder, embeddings are shared between vocabularies
            that are not, or the positions do not reach the row length.
        """
        data = parts.data
        return cls(
            model=parts.make_model(
                Seq2Seq,
                reach=max(data.max_source_length, data.max_target_length),
                source_vocab_size=parts.vocab_sizes["source"],
                target_vocab_size=parts.vocab_sizes["target"],
            ),
            tokenizers=parts.tokenizers,
            max_source_length=data.max_source_length,
            max_target_length=data.max_target_length,
            loss_options=parts.loss,
            **fields,
        )

    def encode_pair(self, pair: Mapping[str, str]) -> dict[str, list[int]]:
        """Tokens of both sides, with special tokens."""
        raise NotImplementedError

    @functools.cached_property
    def losses(self) -> Seq2SeqLosses:
        """Losses and scores of the model."""
        return Seq2SeqLosses(self.model, self.tokenizers.specials("target"), self.loss_options)

    def init(self, rng: jax.Array) -> Params:
        """Returns initial parameters."""
        return self.losses.init(rng)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None, frozen: Frozen) -> LossSums:
        """Returns the cross-entropy of each target token given its past and the source."""
        return self.losses(params, batch, rng, frozen)

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs and the labels of a packed batch."""
        return self.losses.supervised(batch)

    def score(
        self, params: Params, sources: Sequence[str], targets: Sequence[str], batch_size: int
    ) -> list[PairScore]:
        """Returns log P(target | source) of each pair in nats, EOS included. The probability is
        that among all outputs that the model may write.

        Raises:
          UserError: a sequence exceeds the positions that the model knows, or the available memory.
        """
        pairs = [
            self.encode_pair({"source": source, "target": target})
            for source, target in zip(sources, targets, strict=True)
        ]
        return self.losses.score(params, pairs, batch_size)


@dataclasses.dataclass(frozen=True, repr=False)
class LabelingTask(BaseTask):
    """Base of the tasks of a body with a head, which reads one text: one of the classes `bodies`.

    Attributes:
      model: maps tokens to logits of the labels.
      tokenizers: tokenizers of the side "text" and of the side of the labels.
      max_length: slots of a row.
      loss_options: settings of the training loss.
    """

    model: Any
    tokenizers: Tokenizers
    max_length: int
    loss_options: LossOptions
    bodies: ClassVar[Sequence[type[Any]]] = BODIES
    head: ClassVar[type[Any]]
    label_side: ClassVar[str]
    read: ClassVar[Sequence[str]] = ("text",)
    best_by: ClassVar[str] = "accuracy"
    evaluates_by: ClassVar[Sequence[str]] = ("batch_size",)
    decodes: ClassVar[bool] = False

    @classmethod
    def build(cls, parts: TaskParts) -> Self:
        """Makes the task of a run.

        Raises:
          ValueError: the model is none of `bodies`, or its positions do not reach the row length.
        """
        length = parts.data.max_length
        # Both stacks of an encoder-decoder read the text; other bodies read `vocab_size` alone.
        size_fields = ("vocab_size", "source_vocab_size", "target_vocab_size")
        vocab_sizes = dict.fromkeys(size_fields, parts.vocab_sizes["text"])
        body = parts.make_model(*cls.bodies, reach=length, **vocab_sizes)
        model = cls.head(body, num_classes=parts.vocab_sizes[cls.label_side])
        return cls(model, parts.tokenizers, length, parts.loss)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Returns the mean losses of a label, in nats."""
        metrics = compute_metrics(sums)
        return {name: metrics[name] for name in ("loss", "train_loss")}

"""Classification: texts or pairs of texts in, a label for each out.

B batch, T tokens, J texts of a packed row, C classes.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.examples import Corpus, Example, Features
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import label_rows
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.losses import token_losses
from transformer_jax.models import apply_model
from transformer_jax.models.classifier import BODIES, TextClassifier
from transformer_jax.runtime import platform
from transformer_jax.scoring.labels import classification_scores
from transformer_jax.tasks.interface import Batch, LossSums, Params, Prediction, TaskParts
from transformer_jax.tasks.losses import packed_loss, row_inputs, text_frame
from transformer_jax.tokenization import Tokenizers

_SLOTS_PER_LABEL = 8  # a row has room for one label per so many slots of text


@dataclasses.dataclass(frozen=True)
class Classification:
    """The task of an encoder-only or decoder-only body with a head, on {"text", "label"} or
    {"text", "pair", "label"}, all str.

    A row holds [CLS] text [SEP] or [CLS] text [SEP] pair [SEP], whatever the vocabulary has for
    these. For a decoder it begins and ends as documents do in its pre-training. Texts longer than a
    row are cut there, of a pair the longer part first.

    Attributes:
      model: maps tokens to logits of the classes.
      tokenizers: of the sides "text" and "label".
      max_length: slots of a row.
      label_smoothing: of the training loss.
    """

    model: TextClassifier
    tokenizers: Tokenizers
    max_length: int
    label_smoothing: float
    read: ClassVar[Sequence[str]] = ("text",)
    best_by: ClassVar[str] = "accuracy"
    predicts_by: ClassVar[Sequence[str]] = ("num_outputs", "batch_size")
    evaluates_by: ClassVar[Sequence[str]] = ("batch_size",)

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"text": self.max_length, "label": max(1, self.max_length // _SLOTS_PER_LABEL)}

    @classmethod
    def build(cls, parts: TaskParts) -> "Classification":
        """The task of a run.

        Raises:
          ValueError: the model is an encoder-decoder, or its positions do not reach as far as rows.
        """
        length, sizes = parts.data.max_length, parts.vocab_sizes
        body = parts.make_model(*BODIES, reach=length, vocab_size=sizes["text"])
        return cls(
            model=TextClassifier(body, num_classes=sizes["label"]),
            tokenizers=parts.tokenizers,
            max_length=length,
            label_smoothing=parts.loss.label_smoothing,
        )

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row - 1, row, row)["params"]

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """The examples as they are."""
        return examples

    def preprocess(self, example: Example, rng: np.random.Generator) -> Features:
        """The text as tokens, and its label; UserError for a label that training never saw."""
        label = self.tokenizers.labels("label").encode(example["label"])
        tokens = self.tokens(_parts(example))
        return {"text": np.array(tokens), "label": np.array([label], np.int32)}

    def tokens(self, parts: Sequence[str]) -> list[int]:
        """The row of a text or a pair, cut where it is longer than a row; UserError where a row has
        no room for a token of each."""
        frame = text_frame(self.model.body, self.tokenizers)
        room = self.max_length - frame.size(len(parts))
        if room < len(parts):
            what = "a pair" if len(parts) > 1 else "a text"
            least = frame.size(len(parts)) + len(parts)
            raise UserError(
                f"data.max_length is {self.max_length}; {what} takes {least} tokens, "
                "special ones among them"
            )
        tokens = [self.tokenizers.text("text").encode(part) for part in parts]
        while sum(map(len, tokens)) > room:
            max(tokens, key=len).pop()
        return frame.around(*tokens)

    def loss(self, params: Params, batch: Batch, rng: jax.Array | None) -> LossSums:
        """Cross-entropy of the label of each text, label-smoothed in training."""
        logits = self.logits(params, batch, batch["label_segment_ids"], rng)
        counted = batch["label_segment_ids"] > 0
        labels = batch["label"]
        found = token_losses(logits, labels, self.label_smoothing)
        return packed_loss(batch, self.read, found, counted)

    def logits(
        self, params: Params, batch: Batch, texts: jax.Array, rng: jax.Array | None = None
    ) -> jax.Array:
        """[B, J, C] for the texts of these segment ids [B, J]."""
        return apply_model(self.model, params, *row_inputs(batch, "text"), texts, rng=rng)

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """The mean loss of an example, in nats."""
        return {"loss": sums["loss"] / sums["tokens"]}

    def evaluate(
        self, params: Params, examples: Corpus, decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Accuracy, F1 and Matthews correlation, and the likeliest label of each example."""
        ranked = self._rank(params, [_parts(example) for example in examples], decode)
        outputs = [labels[0] for labels in ranked]
        expected = [example["label"] for example in examples]
        labels = self.tokenizers.labels("label").names
        scores = classification_scores([output.text for output in outputs], expected, labels)
        return scores, outputs

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """The `num_outputs` likeliest labels of each line, a text or text<tab>pair; a score is a
        probability."""
        yield from self._rank(params, [line.split("\t", 1) for line in lines], decode)

    def _rank(
        self, params: Params, texts: Sequence[Sequence[str]], decode: DecodeConfig
    ) -> Iterator[list[Prediction]]:
        rows = [self.tokens(parts) for parts in texts]
        names = self.tokenizers.labels("label").names
        for found in label_rows(self._probabilities, params, rows, decode.batch_size):
            best = np.argsort(-found, kind="stable")[: decode.num_outputs]
            yield [Prediction(names[i], float(found[i])) for i in best]

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """A text, or text<tab>pair, as the model reads it."""
        tokens, first = self.tokens(source.split("\t", 1)), np.ones((1, 1), np.int32)
        return text_inputs(self.model.body, self.tokenizers, source, target, tokens, first)

    @functools.cached_property
    def _probabilities(self) -> Callable[..., jax.Array]:
        def probabilities(params: Params, batch: Batch) -> jax.Array:
            texts = jnp.ones((len(batch["text"]), 1), jnp.int32)
            return jax.nn.softmax(self.logits(params, batch, texts))[:, 0]

        return jax.jit(probabilities, compiler_options=platform.compiler_options())


def _parts(example: Example) -> list[str]:
    """The text, and its pair if there is one."""
    return [example[part] for part in ("text", "pair") if part in example]

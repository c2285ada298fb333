"""Classification: texts or pairs of texts in, a label for each out.

B batch, T tokens, J texts of a packed row, C classes.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.labeling import label_rows
from transformer_jax.losses import cross_entropy
from transformer_jax.metrics import slot_sums, token_sums
from transformer_jax.models.classifier import BODIES, TextClassifier
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.positions import check_reach
from transformer_jax.runtime import platform
from transformer_jax.scoring.classification import classification_scores
from transformer_jax.tasks.interface import Batch, Prediction, require_model
from transformer_jax.tokenization import BOS, EOS, Tokenizers

_SLOTS_A_TEXT = 8  # a row has room for a label in each so many of its slots


@dataclasses.dataclass(frozen=True)
class Classification:
    """The task of an encoder-only or decoder-only body with a head, on {"text", "label"} or
    {"text", "pair", "label"}, all str.

    A text is [CLS] text [SEP] or [CLS] text [SEP] pair [SEP] (BOS and EOS in our vocabulary); for
    a decoder, which was trained so, it begins with EOS. What is longer than a row is cut there, of
    a pair the longer part first.

    Attributes:
      model: maps tokens to logits of the classes.
      tokenizers: of the sides "text" and "label"; None where no text is met.
      max_length: slots of a row.
      label_smoothing: of the training loss.
      best_by: the accuracy.
    """

    model: TextClassifier
    tokenizers: Tokenizers | None
    max_length: int
    label_smoothing: float
    read: ClassVar[Sequence[str]] = ("text",)
    best_by: str = "accuracy"

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"text": self.max_length, "label": max(1, self.max_length // _SLOTS_A_TEXT)}

    @classmethod
    def build(
        cls, model_class, settings, vocab_sizes: Mapping[str, int], tokenizers
    ) -> "Classification":
        """The task of a run: its sections `model`, `data` and `train`, and the sizes of vocabulary
        and label set.

        Raises:
          ValueError: the model is an encoder-decoder, or its positions do not reach as far as rows.
        """
        require_model(settings, BODIES, model_class)
        config = dataclasses.replace(settings.model, vocab_size=vocab_sizes["text"])
        check_reach(config, settings.data.max_length)
        model = TextClassifier(model_class(config), vocab_sizes["label"])
        return cls(model, tokenizers, settings.data.max_length, settings.train.label_smoothing)

    def init(self, rng: jax.Array) -> Any:
        """Fresh parameters."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row - 1, row, row)["params"]

    def prepare(self, examples: Sequence[Any], training: bool) -> Sequence[Any]:
        """The examples as they are."""
        return examples

    def preprocess(self, example: Mapping[str, str], rng: np.random.Generator) -> dict[str, Any]:
        """The text as tokens, and its label; UserError where training never saw that."""
        parts = [example[part] for part in ("text", "pair") if part in example]
        label = self.tokenizers["label"].encode(example["label"])
        return {"text": np.array(self._tokens(parts)), "label": np.array([label], np.int32)}

    def _tokens(self, parts: Sequence[str]) -> list[int]:
        tokens = [self.tokenizers["text"].encode(part) for part in parts]
        while sum(map(len, tokens)) + len(tokens) + 1 > self.max_length:
            max(tokens, key=len).pop()
        first = BOS if isinstance(self.model.body, EncoderOnly) else EOS
        return [first, *(token for part in tokens for token in [*part, EOS])]

    def loss(self, params: Any, batch: Batch, rng: jax.Array | None):
        """Cross-entropy of the label of each text, label-smoothed in training."""
        logits = self._logits(params, batch, batch["label_segment_ids"], rng)
        weights = (batch["label_segment_ids"] > 0).astype(jnp.float32)
        losses = cross_entropy(logits, batch["label"], self.label_smoothing)
        sums = token_sums(logits, batch["label"], weights)
        sums |= slot_sums(batch, self.read)
        return (losses * weights).sum(), weights.sum(), sums

    def _logits(self, params, batch, texts, rng=None):
        return self.model.apply(
            {"params": params},
            batch["text"],
            batch["text_positions"],
            batch["text_segment_ids"],
            texts,
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )

    def metrics(self, sums: Mapping[str, float], examples: Sequence[Any]) -> dict[str, Any]:
        """The loss of an example, in nats."""
        return {"loss": sums["loss"] / sums["tokens"]}

    def evaluate(
        self, params: Any, examples: Sequence[Mapping[str, str]], decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """Accuracy, F1 and Matthews correlation, and the likeliest label of each example."""
        parts = [[ex[part] for part in ("text", "pair") if part in ex] for ex in examples]
        outputs = [ranked[0] for ranked in self._rank(params, parts, decode)]
        expected = [example["label"] for example in examples]
        return classification_scores([output.text for output in outputs], expected), outputs

    def predict(
        self,
        params: Any,
        lines: Sequence[str],
        decode: DecodeConfig,
        first_line: int = 1,
        prefixes: Sequence[str] | None = None,
    ) -> Iterator[list[Prediction]]:
        """The `num_outputs` likeliest labels of each line, a text or text<tab>pair; a score is a
        probability.

        Raises:
          UserError: prefixes are given.
        """
        if prefixes is not None:
            raise UserError("prefixes: a classifier puts out labels; leave them out")
        yield from self._rank(params, [line.split("\t", 1) for line in lines], decode)

    def _rank(self, params, texts, decode) -> Iterator[list[Prediction]]:
        rows = [self._tokens(parts) for parts in texts]
        for found in label_rows(self._probabilities, params, rows, decode.batch_size):
            best = np.argsort(-found, kind="stable")[: decode.num_outputs]
            names = self.tokenizers["label"].names
            yield [Prediction(names[i], float(found[i])) for i in best]

    @functools.cached_property
    def _probabilities(self):
        def probabilities(params, batch):
            texts = jnp.ones((len(batch["text"]), 1), jnp.int32)
            return jax.nn.softmax(self._logits(params, batch, texts))[:, 0]

        return jax.jit(probabilities, compiler_options=platform.compiler_options())

"""Tagging: words in, a tag for each out.

B batch, T tokens, C tags.
"""

import dataclasses
import functools
import logging
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
from transformer_jax.models.classifier import BODIES, TokenClassifier
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.positions import check_reach
from transformer_jax.runtime import platform
from transformer_jax.tasks.interface import Batch, Prediction, require_model
from transformer_jax.tokenization import BOS, EOS, Tokenizers

logger = logging.getLogger(__name__)

UNTAGGED = "_"


@dataclasses.dataclass(frozen=True)
class Tagging:
    """The task of an encoder-only or decoder-only body with a head, on {"text", "tags"}: words and
    as many tags, parted by spaces.

    A word's tag is read at its first piece (Devlin et al. 2019, section 5.3). Words beyond the row
    are left out.

    Attributes:
      model: maps tokens to logits of the tags.
      tokenizers: of the sides "text" and "tags"; None where no text is met.
      max_length: slots of a row.
      label_smoothing: of the training loss.
      best_by: the accuracy.
    """

    model: TokenClassifier
    tokenizers: Tokenizers | None
    max_length: int
    label_smoothing: float
    read: ClassVar[Sequence[str]] = ("text",)
    best_by: str = "accuracy"

    @property
    def lengths(self) -> dict[str, int]:
        """Slots of a packed row for each feature."""
        return {"text": self.max_length, "tags": self.max_length}

    @classmethod
    def build(cls, model_class, settings, vocab_sizes: Mapping[str, int], tokenizers) -> "Tagging":
        """The task of a run: its sections `model`, `data` and `train`, and the sizes of vocabulary
        and tag set.

        Raises:
          ValueError: the model is an encoder-decoder, or its positions do not reach as far as rows.
        """
        require_model(settings, BODIES, model_class)
        config = dataclasses.replace(settings.model, vocab_size=vocab_sizes["text"])
        check_reach(config, settings.data.max_length)
        model = TokenClassifier(model_class(config), vocab_sizes["tags"])
        return cls(model, tokenizers, settings.data.max_length, settings.train.label_smoothing)

    def init(self, rng: jax.Array) -> Any:
        """Fresh parameters."""
        row = jnp.ones((1, 1), jnp.int32)
        return self.model.init(rng, row, row, row)["params"]

    def prepare(self, examples: Sequence[Any], training: bool) -> Sequence[Any]:
        """The examples as they are."""
        return examples

    def preprocess(
        self, example: Mapping[str, str], rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """The words as tokens, and "tags": 1 + the tag at the first piece of each word, 0 at all
        else; UserError where training never saw a tag."""
        text, firsts = self._tokens(_words(example["text"]))
        encode = self.tokenizers["tags"].encode
        tags = np.zeros(len(text), np.int32)
        given = _words(example["tags"])[: len(firsts)]
        tags[firsts] = [1 + encode(tag) for tag in given]
        return {"text": np.array(text, np.int32), "tags": tags}

    def _tokens(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Tokens of the words that a row has room for, and the place of each one's first piece."""
        text, firsts = [BOS if isinstance(self.model.body, EncoderOnly) else EOS], []
        for pieces in self.tokenizers["text"].encode_words(words):
            if len(text) + len(pieces) + 1 > self.max_length:
                break
            firsts.append(len(text))
            text += pieces
        return [*text, EOS], firsts

    def loss(self, params: Any, batch: Batch, rng: jax.Array | None):
        """Cross-entropy of the tag of each word, label-smoothed in training."""
        logits = self._logits(params, batch, rng)
        weights = (batch["tags"] > 0).astype(jnp.float32)
        tags = jnp.maximum(batch["tags"] - 1, 0)
        losses = cross_entropy(logits, tags, self.label_smoothing)
        sums = token_sums(logits, tags, weights) | slot_sums(batch, self.read)
        return (losses * weights).sum(), weights.sum(), sums

    def _logits(self, params, batch, rng=None):
        return self.model.apply(
            {"params": params},
            batch["text"],
            batch["text_positions"],
            batch["text_segment_ids"],
            deterministic=rng is None,
            rngs=None if rng is None else {"dropout": rng},
        )

    def metrics(self, sums: Mapping[str, float], examples: Sequence[Any]) -> dict[str, Any]:
        """The loss of a word, in nats."""
        return {"loss": sums["loss"] / sums["tokens"]}

    def evaluate(
        self, params: Any, examples: Sequence[Mapping[str, str]], decode: DecodeConfig
    ) -> tuple[dict[str, Any], list[Prediction]]:
        """The share of words with the right tag, and the tags of each example."""
        n_best = self.predict(params, [example["text"] for example in examples], decode)
        outputs = [tags[0] for tags in n_best]
        pairs = [
            (found, expected)
            for output, example in zip(outputs, examples, strict=True)
            for found, expected in zip(_words(output.text), _words(example["tags"]), strict=True)
        ]
        right = sum(found == expected for found, expected in pairs)
        return {"accuracy": right / len(pairs), "words": len(pairs)}, outputs

    def predict(
        self,
        params: Any,
        lines: Sequence[str],
        decode: DecodeConfig,
        first_line: int = 1,
        prefixes: Sequence[str] | None = None,
    ) -> Iterator[list[Prediction]]:
        """The tags of each line's words, which spaces part; a score is the mean probability.

        Words beyond `max_length` tokens are tagged "_", with a warning that names the line.

        Raises:
          UserError: prefixes are given.
        """
        if prefixes is not None:
            raise UserError("prefixes: a tagger puts out tags; leave them out")
        words = [_words(line) for line in lines]
        rows = [self._tokens(of_line) for of_line in words]
        tokens = [text for text, _ in rows]
        found = label_rows(self._probabilities, params, tokens, decode.batch_size)
        for i, (of_line, (_, firsts), row) in enumerate(zip(words, rows, found, strict=True)):
            left = len(of_line) - len(firsts)
            if left:
                logger.warning(
                    "line %d is too long: its last %d words are left untagged "
                    "(data.max_length is %d)",
                    *(first_line + i, left, self.max_length),
                )
            names = self.tokenizers["tags"].names
            tags = [names[tag] for tag in row[firsts].argmax(axis=1)] + [UNTAGGED] * left
            score = float(row[firsts].max(axis=1).mean()) if firsts else 1.0
            yield [Prediction(" ".join(tags), score)]

    @functools.cached_property
    def _probabilities(self):
        def probabilities(params, batch):
            return jax.nn.softmax(self._logits(params, batch))

        return jax.jit(probabilities, compiler_options=platform.compiler_options())


def _words(text: str) -> list[str]:
    """What spaces part; other white space may belong to a word."""
    return [word for word in text.split(" ") if word]

# SPDX-License-Identifier: Apache-2.0
"""Tagging: a tag for each word.

B batch, T tokens, C tags.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from transformer_jax.data.examples import Corpus, Example, Features
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import label_rows
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.models.classifier import TokenClassifier
from transformer_jax.tasks.base import LabelingTask
from transformer_jax.tasks.interface import Batch, Evaluation, Params, Prediction, Supervised
from transformer_jax.tasks.line_warnings import LineWarnings, read_lines
from transformer_jax.tasks.losses import row_inputs, text_frame


@dataclasses.dataclass(frozen=True, repr=False)
class Tagging(LabelingTask):
    """Tagging with an encoder-only or decoder-only body and a head, on {"text", "tags"}: words and
    as many tags, separated by spaces.

    A word's tag is read at its first piece (Devlin et al. 2019, section 5.3). Words beyond the row
    are left out.
    """

    features: ClassVar[Sequence[str]] = ("text", "tags")
    head: ClassVar[type[Any]] = TokenClassifier
    label_side: ClassVar[str] = "tags"
    predicts_by: ClassVar[Sequence[str]] = ("batch_size",)

    def preprocess(self, example: Example, rng: np.random.Generator) -> Features:
        """Returns the words' tokens, and "tags": 1 + the tag at the first piece of each word, 0
        elsewhere. Raises UserError for a tag that does not occur in the training data.

        If not even the first word fits into a row, both features are longer than a row: such an
        example is skipped, and counted.
        """
        text, firsts = self._tokens(_words(example["text"]))
        if not firsts:
            overlong = np.zeros(self.max_length + 1, np.int32)
            return {"text": overlong, "tags": overlong}
        encode = self.tokenizers.labels("tags").encode
        tags = np.zeros(len(text), np.int32)
        names = _words(example["tags"])[: len(firsts)]
        tags[firsts] = [1 + encode(name) for name in names]
        return {"text": np.array(text, np.int32), "tags": tags}

    def _tokens(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Tokens of the words that fit into a row, and the position of each word's first piece."""
        frame = text_frame(self.model.body, self.tokenizers)
        text: list[int] = []
        firsts: list[int] = []
        for pieces in self.tokenizers.text("text").encode_words(words):
            if frame.size() + len(text) + len(pieces) > self.max_length:
                break
            firsts.append(len(frame.head) + len(text))
            text += pieces
        return frame.around(text), firsts

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs, and the tag at the first piece of each word."""
        tags = batch["tags"]
        return Supervised(row_inputs(batch, "text"), jnp.maximum(tags - 1, 0), tags > 0)

    def evaluate(self, params: Params, examples: Corpus, decode: DecodeConfig) -> Evaluation:
        """Returns the accuracy per word, the number of words, and the tags of each example."""
        n_best = self.predict(params, [example["text"] for example in examples], decode)
        outputs = [tags[0] for tags in n_best]
        pairs = [
            (tag, gold)
            for output, example in zip(outputs, examples, strict=True)
            for tag, gold in zip(_words(output.text), _words(example["tags"]), strict=True)
        ]
        right = sum(tag == gold for tag, gold in pairs)
        return {"accuracy": right / len(pairs), "words": len(pairs)}, outputs

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields the tags of each line's words, which spaces separate. A score is the mean
        probability of the tags.

        Words that do not fit into a row are tagged "_", or with more of them where that is a tag,
        with a warning that names the line.
        """
        limit = f"words are left untagged (data.max_length is {self.max_length})"

        def read(line: str, warnings: LineWarnings) -> tuple[list[int], list[int], int]:
            words = _words(line)
            text, firsts = self._tokens(words)
            left = len(words) - len(firsts)
            if left:
                message = f"{warnings.name} is too long: its last {left} {limit}"
                warnings.add(message, f"are too long: their last {limit}")
            return text, firsts, left

        rows = read_lines(lines, first_line, read)
        tokens = [text for text, _, _ in rows]
        probabilities = label_rows(self.probabilities, params, tokens, decode.batch_size)
        names = self.tokenizers.labels("tags").names
        mark = "_"
        while mark in names:  # a gold tag would make it right
            mark += "_"
        for (_, firsts, left), row in zip(rows, probabilities, strict=True):
            tags = [names[tag] for tag in row[firsts].argmax(axis=1)] + [mark] * left
            score = float(row[firsts].max(axis=1).mean()) if firsts else 1.0
            yield [Prediction(" ".join(tags), score)]

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """Returns a line's words as the model reads them, cut to a row. The target has their gold
        tags."""
        words = _words(source)
        tags = _words(target or "")
        if target is not None and len(words) != len(tags):
            raise UserError(f"{len(words)} words but {len(tags)} gold tags; give one tag a word")
        tokens, firsts = self._tokens(words)
        inputs = text_inputs(self.model.body, self.tokenizers, source, None, tokens)
        return dataclasses.replace(inputs, labeled=firsts, gold=tags[: len(firsts)])


def _words(text: str) -> list[str]:
    """Splits at spaces alone: other white space may belong to a word."""
    return [word for word in text.split(" ") if word]

# SPDX-License-Identifier: Apache-2.0
"""Classification of texts, or pairs of texts.

B batch, T tokens, J texts of a packed row, C classes.
"""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.examples import Corpus, Example, Features
from transformer_jax.errors import UserError
from transformer_jax.inference.batches import label_rows
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.models import apply_model
from transformer_jax.models.classifier import BODIES, TextClassifier
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.scoring.labels import classification_scores
from transformer_jax.tasks.base import LabelingTask
from transformer_jax.tasks.interface import Batch, Evaluation, Params, Prediction, Supervised
from transformer_jax.tasks.line_warnings import LineWarnings, collect_warnings, read_lines
from transformer_jax.tasks.losses import row_inputs, text_frame

logger = logging.getLogger(__name__)

_SLOTS_PER_LABEL = 8
"""A row has room for one label per this many slots of text."""


@dataclasses.dataclass(frozen=True, repr=False)
class Classification(LabelingTask):
    """Classification with a head on an encoder-only, decoder-only or encoder-decoder body, on
    {"text", "label"} or {"text", "pair", "label"}, all str.

    A row holds [CLS] text [SEP] or [CLS] text [SEP] pair [SEP], in the vocabulary's own special
    tokens; for a decoder, a text begins and ends as documents do in pre-training. Texts longer than
    a row are cut; of a pair the longer text first.
    """

    models: ClassVar[Sequence[type[Any]]] = (*BODIES, EncoderDecoder)
    head: ClassVar[type[Any]] = TextClassifier
    label_side: ClassVar[str] = "label"
    predicts_by: ClassVar[Sequence[str]] = ("num_outputs", "batch_size")

    @property
    def lengths(self) -> dict[str, int]:
        return {"text": self.max_length, "label": max(1, self.max_length // _SLOTS_PER_LABEL)}

    def init(self, rng: jax.Array) -> Params:
        row = jnp.ones((1, 1), jnp.int32)
        # Tokens, positions, segment ids and texts of a row with one slot.
        return self.model.init(rng, row, row - 1, row, row)["params"]

    def preprocess(self, example: Example, rng: np.random.Generator) -> Features:
        """Returns the text's tokens and its label. Raises UserError for a label that does not occur
        in the training data."""
        label = self.tokenizers.labels("label").encode(example["label"])
        tokens = self.tokens(_parts(example))
        return {"text": np.array(tokens), "label": np.array([label], np.int32)}

    def tokens(self, parts: Sequence[str], warnings: LineWarnings | None = None) -> list[int]:
        """Tokens of a text or a pair, cut to a row, with a warning about the line if there are
        `warnings`. Raises UserError if a row has no room for a token of each text."""
        frame = text_frame(self.model.body, self.tokenizers)
        room = self.max_length - frame.size(len(parts))
        if room < len(parts):
            text_or_pair = "a pair" if len(parts) > 1 else "a text"
            least = frame.size(len(parts)) + len(parts)
            raise UserError(
                f"data.max_length is {self.max_length}; {text_or_pair} takes {least} tokens, "
                "special ones among them"
            )
        tokens = [self.tokenizers.text("text").encode(part) for part in parts]
        count = sum(map(len, tokens))
        if warnings and count > room:
            limit = f"(data.max_length is {self.max_length})"
            message = f"{warnings.name} has {count} tokens; only {room} are read {limit}"
            warnings.add(message, f"are cut to {room} tokens {limit}")
        while sum(map(len, tokens)) > room:
            max(tokens, key=len).pop()
        return frame.around(*tokens)

    def supervised(self, batch: Batch) -> Supervised:
        """Returns the model's inputs, and the label of each text."""
        texts = batch["label_segment_ids"]
        return Supervised((*row_inputs(batch, "text"), texts), batch["label"], texts > 0)

    def logits(
        self, params: Params, batch: Batch, texts: jax.Array, rng: jax.Array | None = None
    ) -> jax.Array:
        """Logits [B, J, C] of the texts with these segment ids [B, J]."""
        return apply_model(self.model, params, *row_inputs(batch, "text"), texts, rng=rng)

    def evaluate(self, params: Params, examples: Corpus, decode: DecodeConfig) -> Evaluation:
        """Returns accuracy, F1 and Matthews correlation, and the likeliest label of each
        example."""
        ranked = self._rank(params, [_parts(example) for example in examples], decode)
        outputs = [labels[0] for labels in ranked]
        expected = [example["label"] for example in examples]
        labels = self.tokenizers.labels("label").names
        predicted = {output.text for output in outputs}
        if len(predicted) == 1 and len(set(expected)) > 1:
            logger.warning("all %d predictions are %r", len(outputs), *predicted)
        scores = classification_scores([output.text for output in outputs], expected, labels)
        return scores, outputs

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields the `num_outputs` likeliest labels of each line, a text or text<tab>pair, with
        their probabilities. Lines that are longer than a row are cut, with a warning that names
        them, counted from `first_line`."""
        yield from self._rank(params, [line.split("\t", 1) for line in lines], decode, first_line)

    def _rank(
        self, params: Params, texts: list[list[str]], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        rows = read_lines(texts, first_line, self.tokens)
        names = self.tokenizers.labels("label").names
        for (probabilities,) in label_rows(self.probabilities, params, rows, decode.batch_size):
            best = np.argsort(-probabilities, kind="stable")[: decode.num_outputs]
            yield [Prediction(names[i], float(probabilities[i])) for i in best]

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """Returns a text, or text<tab>pair, as the model reads it. The target is its gold label."""
        names = self.tokenizers.labels("label").names
        if target is not None and target not in names:
            raise UserError(f"{target!r} is not a label of this run; it has {', '.join(names)}")
        with collect_warnings() as warnings:
            tokens = self.tokens(source.split("\t", 1), warnings)
        texts = np.ones((1, 1), np.int32)  # the segment id of the only text
        inputs = text_inputs(self.model.body, self.tokenizers, source, None, tokens, texts)
        return dataclasses.replace(inputs, gold=() if target is None else (target,))


def _parts(example: Example) -> list[str]:
    return [example[part] for part in ("text", "pair") if part in example]

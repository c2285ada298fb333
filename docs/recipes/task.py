# SPDX-License-Identifier: Apache-2.0
"""A task: regression, a number per text (such as a rating), trained by squared error.

    transformer_jax train --config=cola --workdir=runs/ratings \\
        --modules=docs/recipes/task.py --config.task.name=regression \\
        --config.data.name=table --config.data.train_text=train.tsv \\
        --config.data.valid_text=valid.tsv --config.data.test_text=test.tsv
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.inference.batches import label_rows
from transformer_jax.metrics import padding_sums
from transformer_jax.models.classifier import BODIES, TextClassifier
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.classification import Classification
from transformer_jax.tasks.interface import Prediction, TaskKind


class Regression(Classification):
    """Reads {"text", "label"}, the label a number; rows and model are `Classification`'s."""

    best_by = "-absolute_error"
    predicts_by = ("batch_size",)

    @classmethod
    def build(cls, parts):
        length, size = parts.data.max_length, parts.vocab_sizes["text"]
        body = parts.make_model(*BODIES, reach=length, vocab_size=size)
        return cls(TextClassifier(body, num_classes=1), parts.tokenizers, length, parts.loss)

    def preprocess(self, example, rng):
        label = round(1000 * number(example["label"]))  # features are integers
        return {"text": np.array(self.tokens([example["text"]])), "label": np.array([label])}

    def loss(self, params, batch, rng, frozen):
        found = self.logits(params, batch, batch["label_segment_ids"], rng)[..., 0]
        counted = (batch["label_segment_ids"] > 0).astype(jnp.float32)
        losses = jnp.square(found - batch["label"] / 1000) * counted
        sums = {"tokens": counted.sum(), **padding_sums(batch, self.read)}
        return losses.sum(), counted.sum(), sums

    def evaluate(self, params, examples, decode):
        outputs = [best for (best,) in self.predict(params, [e["text"] for e in examples], decode)]
        errors = np.array([o.text for o in outputs], float) - [number(e["label"]) for e in examples]
        return {"absolute_error": float(np.abs(errors).mean())}, outputs

    def predict(self, params, lines, decode, first_line=1):
        rows = [self.tokens([line]) for line in lines]
        for number in label_rows(self.numbers, params, rows, decode.batch_size):
            yield [Prediction(f"{number:.3f}", score=0.0)]

    @functools.cached_property
    def numbers(self):  # (params, batch with one text per row) -> [B]
        return jax.jit(lambda p, b: self.logits(p, b, b["text_segment_ids"][:, :1])[:, 0, 0])


def number(label):
    if re.fullmatch(r"[+-]?\d{1,6}(\.\d+)?", label):
        return float(label)
    raise UserError(f"label {label!r} is not a decimal number")


DEFAULTS = TASKS["classification"].defaults
TASKS.register("regression", TaskKind(Regression.build, {"text": ("text",)}, defaults=DEFAULTS))

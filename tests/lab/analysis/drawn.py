# SPDX-License-Identifier: Apache-2.0
"""Small models of each architecture with random parameters, and an example for each."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from transformer_jax.inference.model_inputs import ModelInputs, as_row
from transformer_jax.models import MODELS
from transformer_jax.models.patches import find_hook_points
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.tokenization import Labels

SIZES = dict(d_model=16, d_ff=24, num_heads=2, dtype="float32", dropout_rate=0.0, num_layers=2)
SIZES |= dict(num_encoder_layers=2, num_decoder_layers=2, vocab_size=11)
SIZES |= dict(source_vocab_size=11, target_vocab_size=11, tie_embeddings="none")
TOKENS = {"encoder": [4, 9, 5, 7, 2], "decoder": [1, 8, 3, 10]}
STACKS = {
    "encoder_decoder": ("encoder", "decoder"),
    "decoder_only": ("decoder",),
    "encoder_only": ("encoder",),
}


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, inputs):
    return model.apply({"params": params}, *inputs)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A model, its parameters, and an example: as much of a run as the analyses read."""

    model: Any
    params: Any
    reading: ModelInputs
    outputs: Any = Labels(tuple(map(str, range(11))))

    @property
    def tokenizer(self):
        return SimpleNamespace(outputs=self.outputs)

    def model_inputs(self, source, target=None):
        return self.reading

    def logits(self, model=None, params=None):
        """Logits of the example. Equal models are compiled once."""
        found = logits_of(model or self.model, params or self.params, self.reading.inputs)
        return np.asarray(found[0, : len(self.reading.tokens[self.reading.last_stack])])

    @functools.cached_property
    def hook_points(self):
        """Hook points of the model."""
        return find_hook_points(lambda key: self.model.init(key, *self.reading.inputs))


def reading_of(architecture, tokens=TOKENS):
    tokens = {stack: tokens[stack] for stack in STACKS[architecture]}
    inputs = sum((as_row(of_stack) for of_stack in tokens.values()), ())
    if architecture == "encoder_only":
        inputs = (*inputs, inputs[1])
    pieces = {stack: [f"t{i}" for i in of_stack] for stack, of_stack in tokens.items()}
    return ModelInputs({"text": "drawn"}, tokens, pieces, inputs)


def draw(random_params, architecture, **changes):
    """A model with random parameters, none of them 0 or 1."""
    model = MODELS[architecture](TransformerConfig(**SIZES | changes))
    reading = reading_of(architecture)
    params = random_params(model, *reading.inputs)["params"]
    return Drawn(model, params, reading)

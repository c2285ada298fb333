"""The walk: every step of one example, from text to the next token."""

from collections.abc import Iterator
from typing import Any

from transformer_jax.analysis.collecting import collect
from transformer_jax.analysis.reading import Reading
from transformer_jax.analysis.walk.decoding_steps import decoding_steps
from transformer_jax.analysis.walk.embedding_steps import embedding_steps
from transformer_jax.analysis.walk.layer_steps import layer_steps, norm_step
from transformer_jax.analysis.walk.prediction_steps import prediction_steps
from transformer_jax.analysis.walk.seen import Seen
from transformer_jax.analysis.walk.step import Step, Walk
from transformer_jax.errors import UserError
from transformer_jax.models.classifier import body_config
from transformer_jax.tokenization import Labels, Tokenizer


def walk(
    model: Any,
    params: Any,
    reading: Reading,
    outputs: Tokenizer | Labels,
) -> Walk:
    """All steps of one example, with the numbers that the model computes.

    Args:
      model: takes `reading.inputs`.
      params: of the model, on the devices that compute.
      reading: the example.
      outputs: the vocabulary of what the model predicts, the last stack's or labels.

    Raises:
      UserError: the model has no layers with places (`nn.places`).
    """
    values = collect(model, params, reading, ["**"])
    seen = Seen(model, params, body_config(model), reading, values, outputs)
    for stack in reading.tokens:
        if f"{stack}.layer_0" not in values:
            raise UserError(
                f"walk: no layers were found in {type(model).__name__}'s {stack}; it can be walked "
                "through where it is made of nn.encoder and nn.decoder, and model.scan_layers is "
                "False"
            )
    return Walk(reading.texts, tuple(_steps(seen)))


def _steps(seen: Seen) -> Iterator[Step]:
    for stack in seen.reading.tokens:
        yield from embedding_steps(seen, stack)
        layers = 0
        while f"{stack}.layer_{layers}" in seen.values:
            yield from layer_steps(seen, stack, layers)
            layers += 1
        if seen.config.norm_placement != "post":
            stream = seen.values[f"{stack}.layer_{layers - 1}"]
            group = (stack, "output")
            yield norm_step(seen, "final_norm", stack, group, stream, stack)
    yield from prediction_steps(seen)
    yield from decoding_steps(seen)

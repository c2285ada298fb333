"""The walk: every step of one example, from text to the next token."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.analysis.activations import collect
from transformer_jax.analysis.pages.document import asset, pack_floats, page
from transformer_jax.analysis.walk.layer_steps import embedding_steps, layer_steps, norm_step
from transformer_jax.analysis.walk.prediction_steps import decoding_steps, prediction_steps
from transformer_jax.analysis.walk.step import Axis, Seen, Walk, WalkStep, parsed
from transformer_jax.errors import UserError
from transformer_jax.inference.model_inputs import ModelInputs
from transformer_jax.models.classifier import body_config
from transformer_jax.tokenization import Labels, Tokenizer


def walk(
    model: Any,
    params: Any,
    reading: ModelInputs,
    outputs: Tokenizer | Labels,
) -> Walk:
    """All steps of one example, with the numbers that the model computes.

    Args:
      model: takes `reading.inputs`.
      params: of the model, on the devices that compute.
      reading: the example.
      outputs: the vocabulary of what the model predicts, the last stack's or labels.

    Raises:
      UserError: the model has no layers with places (`nn.hooks`).
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


def _steps(seen: Seen) -> Iterator[WalkStep]:
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


# FOLDED analysis.walk.page: The page of a walk: contents at the left, a step with its numbers at
# the right.


BUDGET = 2_000_000
"""Bytes that a page should not exceed."""
_CUTS = ((64, 11), (32, 11), (24, 10), (16, 8), (10, 6), (5, 4))
"""How many of tokens and how many of anything else a page may show along an axis; the first pair
with which it stays within `BUDGET` is taken."""
_WHOLE = ("head", "layer", "candidate", "number")
STYLES = ("theme.css", "walk.css")
SCRIPTS = ("packed.js", "document.js", "colours.js", "walk_table.js", "walk.js")


def walk_page(walk: Walk, title: str) -> str:
    """One HTML document that leads through a walk; large arrays are cut.

    Args:
      title: of the document, plain text.
    """
    styles, scripts = list(map(asset, STYLES)), list(map(asset, SCRIPTS))
    document = ""
    for tokens, others in _CUTS:
        data = {
            "title": title,
            "texts": dict(walk.texts),
            "steps": [_step(step, tokens, others) for step in walk.steps],
        }
        document = page(title, asset("walk.html"), styles, scripts, data)
        if len(document) <= BUDGET:  # ASCII, but for the assets' few signs
            break
    return document


def _step(step: WalkStep, tokens: int, others: int) -> dict[str, Any]:
    """A step as the page reads it: the numbers shown, and where they stand in the whole array."""
    kept = [
        _kept(step.values, i, axis, tokens if axis.labels else others)
        for i, axis in enumerate(step.axes)
    ]
    return {
        "kind": step.kind,
        "group": list(step.group),
        "title": step.title,
        "formula": parsed(step.formula),
        "spoken": step.formula,
        "section": step.section,
        "file": step.where.file,
        "function": step.where.function,
        "explanation": step.explanation,
        "shape": step.shape,
        "example": list(step.example),
        "places": list(step.places),
        "axes": [
            {
                "name": axis.name,
                "size": size,
                "shown": list(indices),
                "labels": [axis.labels[i] for i in indices] if axis.labels else None,
            }
            for axis, size, indices in zip(step.axes, step.values.shape, kept, strict=True)
        ],
        "values": pack_floats(step.values[np.ix_(*kept)]),
    }


def _kept(values: np.ndarray, number: int, axis: Axis, most: int) -> Sequence[int]:
    """The indices along an axis that are shown: the first ones; of a vocabulary those with the
    highest numbers."""
    size = values.shape[number]
    if axis.name in _WHOLE or size <= most:
        return range(size)
    if axis.name == "vocabulary entry":
        highest = values.max(axis=tuple(i for i in range(values.ndim) if i != number))
        return np.argsort(-highest, kind="stable")[: most // 4].tolist()
    return range(most)

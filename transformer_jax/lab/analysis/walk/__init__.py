# SPDX-License-Identifier: Apache-2.0
"""The walk through a model: all steps of one example, from text to the next token, as a page."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.analysis.activations import collect
from transformer_jax.lab.analysis.pages import pack_floats, page
from transformer_jax.lab.analysis.walk.layer_steps import embedding_steps, layer_steps, norm_step
from transformer_jax.lab.analysis.walk.prediction_steps import decoding_steps, prediction_steps
from transformer_jax.lab.analysis.walk.step import Axis, Trace, Walk, WalkStep, parse_formula
from transformer_jax.models.classifier import body_config
from transformer_jax.runs.run import Run

BUDGET = 2_000_000
"""Target size of a page in bytes."""
_CUTS = ((64, 11), (32, 11), (24, 10), (16, 8), (10, 6), (5, 4))
"""Largest number of tokens, and of other entries, that a page shows along an axis. The first pair
that keeps the page within `BUDGET` is used."""
_WHOLE = ("head", "layer", "candidate", "number")  # axes that are never cut
ASSETS = (
    *("theme.css", "walk.css", "walk.html", "packed.js", "document.js", "colours.js"),
    *("walk_table.js", "diagram.js", "walk.js"),
)

_TITLES = {
    **dict.fromkeys(("tokens", "ids", "embedding", "embedding_scale"), "Embedding"),
    **dict.fromkeys(("positions", "embedded"), "Positions"),
    "token_types": "Token types",
    **dict.fromkeys(("embedding_norm", "norm_before", "norm_after", "final_norm"), "Norm"),
    "residual": "Add",
    "prediction_head": "Prediction head",
    "logits": "Output matrix",
    **dict.fromkeys(("next", "filled", "classes"), "Softmax"),
}
"""Titles of parts by the kind of their steps; of others, the name of the sublayer."""
_AFTER = ("residual", "norm_after")  # one part: "Add & norm", as in figure 1


def walk(run: Run, source: str, target: str | None = None) -> Walk:
    """The computation of one example step by step, with the model's own numbers; arguments of
    `attention`.

    Raises:
      UserError: the model has no layers with hook points (`nn.hooks`), or no residual connections.
    """
    reading = run.model_inputs(source, target)
    config = body_config(run.model)
    if not config.residual_connections:
        raise UserError("walk: the model has no residual connections, which a walk shows")
    blocks = {config.of_layer(i).block for i in range(len(config.pattern))}
    if config.residual != "add" or blocks != {"sequential"}:
        raise UserError("walk: it shows model.residual 'add' and model.block 'sequential' alone")
    values = collect(run.model, run.params, reading, ["**"])
    trace = Trace(run.model, run.params, config, reading, values, run.tokenizer.outputs)
    for stack in reading.tokens:
        if f"{stack}.layer_0" not in values:
            raise UserError(
                f"walk: {type(run.model).__name__} has no layers in its {stack}; a walk needs "
                "stacks of nn.transformer and model.scan_layers=False"
            )
    return Walk(reading.texts, tuple(_steps(trace)))


def _steps(trace: Trace) -> Iterator[WalkStep]:
    for stack in trace.reading.tokens:
        yield from embedding_steps(trace, stack)
        layers = 0
        while f"{stack}.layer_{layers}" in trace.values:
            yield from layer_steps(trace, stack, layers)
            layers += 1
        if trace.config.norm_placement != "post":
            stream = trace.values[f"{stack}.layer_{layers - 1}"]
            output = trace.part(stack, stack, "output")
            yield norm_step(output, "final_norm", stream, trace.values[stack])
    yield from prediction_steps(trace)
    yield from decoding_steps(trace)


def walk_page(walk: Walk, title: str, command: str = "") -> str:
    """HTML page of a walk: diagram and contents on the left, a step with its numbers on the right.

    Large arrays are cut; `command` is as of `attention_page`.
    """
    document = ""
    for tokens, others in _CUTS:  # the last one stays, even if its page is larger
        data = {
            "title": title,
            "texts": dict(walk.texts),
            "command": command,
            "diagram": diagram(walk.steps),
            "steps": [_step(step, tokens, others) for step in walk.steps],
        }
        document = page(title, ASSETS, data)
        if len(document) <= BUDGET:  # ASCII, except a few characters of the assets
            break
    return document


def _step(step: WalkStep, tokens: int, others: int) -> dict[str, Any]:
    """JSON of a step: the numbers shown, and their indices in the whole array."""
    shown = [
        _shown(step.values, i, axis, tokens if axis.labels else others)
        for i, axis in enumerate(step.axes)
    ]
    as_they_are = ("kind", "group", "title", "section", "file", "function", "explanation")
    return {name: getattr(step, name) for name in (*as_they_are, "shape", "example")} | {
        "formula": parse_formula(step.formula),
        "spoken": step.formula,
        "axes": [
            {
                "name": axis.name,
                "size": size,
                "shown": list(indices),
                "labels": [axis.labels[i] for i in indices] if axis.labels else None,
            }
            for axis, size, indices in zip(step.axes, step.values.shape, shown, strict=True)
        ],
        "values": pack_floats(step.values[np.ix_(*shown)]),
    }


def _shown(values: np.ndarray, number: int, axis: Axis, most: int) -> Sequence[int]:
    """Indices shown along an axis: the first ones, or the largest values of a vocabulary axis."""
    size = values.shape[number]
    if axis.name in _WHOLE or size <= most:
        return range(size)
    if axis.name == "vocabulary entry":
        highest = values.max(axis=0)  # of all tokens
        return np.argsort(-highest, kind="stable")[: most // 4].tolist()
    return range(most)


def diagram(steps: Sequence[WalkStep]) -> list[dict[str, Any]]:
    """Diagram of the architecture: the stacks, blocks and parts whose steps the walk has.

    It is [{"name", "blocks": [{"name", "parts": [part, ...]}, ...]}, ...], and a part is
    {"title", "sublayer", "first", "last"}; the last two are indices of steps. Prediction
    and decoding are blocks of the last stack. Blocks are in the order of computation.
    """
    stacks: list[dict[str, Any]] = []
    numbered = list(enumerate(steps))
    for (name, block), members in itertools.groupby(numbered, lambda pair: _block(pair[1])):
        if block and (not stacks or stacks[-1]["name"] != name):
            stacks.append({"name": name, "blocks": []})
        stacks[-1]["blocks"].append({"name": block or name, "parts": list(_parts(members))})
    return stacks


def _block(step: WalkStep) -> tuple[str, str]:
    """Stack and block of a step. Decoding, or prediction, is one block."""
    name = step.group[0]
    return name, step.group[1] if name in ("encoder", "decoder") else ""


def _parts(steps: Iterator[tuple[int, WalkStep]]) -> Iterator[dict[str, Any]]:
    def part(pair: tuple[int, WalkStep]) -> tuple[str, ...]:
        _, step = pair
        return *step.group[2:3], "after" if step.kind in _AFTER else _title(step)

    for _, group in itertools.groupby(steps, part):
        members = list(group)
        first, first_step = members[0]
        last, _ = members[-1]
        titles = dict.fromkeys(_title(step) for _, step in members)
        yield {
            "title": " & ".join(titles).capitalize(),
            "sublayer": "".join(first_step.group[2:3]),
            "first": first,
            "last": last,
        }


def _title(step: WalkStep) -> str:
    if step.group[0] == "decoding":
        return "Decoding"
    return _TITLES.get(step.kind, step.group[-1])

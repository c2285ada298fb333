# SPDX-License-Identifier: Apache-2.0
"""Diagram of a model for a walk: its stacks, their blocks and parts, from input to output.

The parts are those whose steps the walk has, so the diagram shows the architecture of the run.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from transformer_jax.lab.analysis.walk.step import WalkStep

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


def diagram(steps: Sequence[WalkStep]) -> list[dict[str, Any]]:
    """JSON of the stacks, [{"name", "blocks": [{"name", "parts": [part, ...]}, ...]}, ...].

    A part is {"title", "sublayer", "first", "last"}; the last two are indices of steps. Prediction
    and decoding are blocks of the last stack. Blocks are in the order of computation.
    """
    stacks: list[dict[str, Any]] = []
    numbered = list(enumerate(steps))
    for (name, block), members in itertools.groupby(numbered, lambda pair: _block(pair[1])):
        is_stack = name in ("encoder", "decoder")
        if is_stack and (not stacks or stacks[-1]["name"] != name):
            stacks.append({"name": name, "blocks": []})
        title = block if is_stack else name
        stacks[-1]["blocks"].append({"name": title, "parts": list(_parts(members))})
    return stacks


def _block(step: WalkStep) -> tuple[str, str]:
    """Stack and block of a step. Decoding, or prediction, is one block."""
    name = step.group[0]
    return name, step.group[1] if name in ("encoder", "decoder") else ""


def _parts(steps: Iterator[tuple[int, WalkStep]]) -> Iterator[dict[str, Any]]:
    for _, group in itertools.groupby(steps, lambda pair: _part(pair[1])):
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


def _part(step: WalkStep) -> tuple[str, ...]:
    """Key that neighbouring steps of a part share."""
    sublayer = step.group[2] if len(step.group) > 2 else ""
    return sublayer, "after" if step.kind in _AFTER else _title(step)


def _title(step: WalkStep) -> str:
    if step.group[0] == "decoding":
        return "Decoding"
    return _TITLES.get(step.kind, step.group[-1])

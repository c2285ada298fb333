# SPDX-License-Identifier: Apache-2.0
"""HTML page of attention: head, model and neuron views, weights, alignment and the beam tree."""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.lab.analysis.pages import pack_scaled, pack_weights, page
from transformer_jax.summary import counted

BUDGET = 2_000_000
"""Size of a page in bytes up to which vectors for the neuron view are added."""
MOST_LABELS = 20
"""Number of labels shown for a text; the others are one row. Of a token, `MOST_OF_TOKEN`."""
MOST_OF_TOKEN = 5
TITLES: Mapping[str, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
"""Titles of the kinds of attention."""
ASSETS = (
    *("theme.css", "attention.css", "attention.html"),
    *("packed.js", "document.js", "colours.js", "heat_grid.js"),
    *("head_view.js", "model_view.js", "neuron_view.js", "heat_map.js", "alignment.js"),
    *("predictions.js", "beam_tree.js", "state.js", "controls.js", "keys.js", "page.js"),
)

type BeamTree = Mapping[str, Any]
"""{"beam_size", "alpha", "nodes": [{"id", "parent", "step", "token", "log_prob", "state", "score",
"why"}, ...], "outputs": ids, best first}: `decoding.BeamTree.as_json()`."""


def attention_page(
    attention: Any, title: str, beams: BeamTree | None = None, command: str = ""
) -> str:
    """HTML page of an `analysis.activations.Attention`, which shows itself as this page.

    Args:
      beams: hypotheses that the beam search kept and dropped; None: no beam view.
      command: shell command that makes a page of another sentence; empty: the page shows none.
    """
    data: dict[str, Any] = {
        "title": title,
        "texts": dict(attention.texts),
        "command": command,
        "tokens": {stack: list(tokens) for stack, tokens in attention.tokens.items()},
        "kinds": {kind: _kind(attention, kind) for kind in attention.kinds},
        "predictions": _predictions(attention.predictions),
        "beams": None if beams is None else _without_infinities(beams),
    }
    size = len(page(title, ASSETS, data).encode())
    # 1000 bytes for the sentences about layers that are left out.
    _add_vectors(data["kinds"], attention, BUDGET - size - 1000)
    return page(title, ASSETS, data)


def _predictions(predictions: Any) -> dict[str, Any]:
    """JSON of the predictions; "rest" is the probability of outputs that are left out."""
    if predictions is None:
        return {"what": "", "each": []}
    rows = []
    for position, outputs, gold in predictions.by_position:
        shown = outputs[: MOST_LABELS if position is None else MOST_OF_TOKEN]
        rows.append(
            {
                "position": position,
                "outputs": [[output.text, round(output.score, 6)] for output in shown],
                "rest": max(0.0, round(1 - sum(output.score for output in shown), 6)),
                "gold": gold,
            }
        )
    return {"what": predictions.kind, "each": rows}


def _kind(attention: Any, kind: str) -> dict[str, Any]:
    weights = attention.of(kind, "weights")
    queries, keys = attention.stacks(kind)
    return {
        "title": TITLES[kind],
        "queriesOf": queries,
        "keysOf": keys,
        "heads": weights.shape[1],
        "layers": attention.layers(kind),
        "weights": list(map(pack_weights, weights)),
        "queries": [None] * len(weights),
        "keys": [None] * len(weights),
        "leftOut": "",
    }


def _add_vectors(kinds: Mapping[str, dict[str, Any]], attention: Any, room: int) -> None:
    """Adds at most `room` bytes of queries and keys, and says which layers are left out."""
    collected = {}
    for kind in reversed(attention.kinds):
        with contextlib.suppress(KeyError):  # they were not collected
            collected[kind] = {name: attention.by_layer(kind, name) for name in ("queries", "keys")}
    layers = [
        (kind, layer)
        for kind, vectors in collected.items()
        for layer in range(len(vectors["queries"]))
    ]
    left_out: dict[str, list[int]] = {}
    for kind, layer in sorted(layers, key=lambda place: -place[1]):  # the last ones first
        packed = {name: pack_scaled(values[layer]) for name, values in collected[kind].items()}
        size = sum(len(json.dumps(array)) for array in packed.values())
        if size > room:
            left_out.setdefault(kind, []).append(layer)
            continue
        room -= size
        for name, array in packed.items():
            kinds[kind][name][layer] = array
    for kind, layers_of_kind in left_out.items():
        numbers = ", ".join(str(kinds[kind]["layers"][layer]) for layer in sorted(layers_of_kind))
        kinds[kind]["leftOut"] = (
            f"Vectors of layers {numbers} are left out: the page would exceed "
            f"{BUDGET // 1_000_000} MB."
        )


def _without_infinities(beams: BeamTree) -> dict[str, Any]:
    """Replaces -inf, the log probability of forbidden tokens, by null: JSON has no infinities."""
    nodes = [
        {name: None if value == -math.inf else value for name, value in node.items()}
        for node in beams["nodes"]
    ]
    return {**beams, "nodes": nodes}


def index_page(pages: Sequence[tuple[str, str]]) -> str:
    """HTML page that links to other pages of its folder, (file name, line) of each."""
    assets = ("theme.css", "index.html", "document.js", "index.js")
    return page(counted(len(pages), "page"), assets, list(pages))

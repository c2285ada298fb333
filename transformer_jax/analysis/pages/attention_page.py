"""A page of what a model attends to: heads, layers, vectors, numbers, alignment, and the beam."""

import contextlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from transformer_jax.analysis.pages.document import asset, pack_scaled, pack_weights, page

BUDGET = 2_000_000
"""Bytes of a page up to which the vectors of its neuron view are added."""
TITLES: Mapping[str, str] = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
"""What a page calls each kind of attention."""
STYLES = ("theme.css", "attention.css")
SCRIPTS = (
    *("packed.js", "document.js", "colours.js", "heat_grid.js"),
    *("head_view.js", "model_view.js", "neuron_view.js", "heat_map.js", "alignment.js"),
    *("beam_tree.js", "state.js", "controls.js", "keys.js", "page.js"),
)

type BeamTree = Mapping[str, Any]
"""{"beam_size", "alpha", "nodes": [{"id", "parent", "step", "token", "log_prob", "state", "score",
"why"}, ...], "outputs": ids, best first}: `decoding.BeamTree.as_json()`."""


class Attended(Protocol):
    """What is drawn: `analysis.Attention`, where these are explained."""

    @property
    def texts(self) -> Mapping[str, str]: ...
    @property
    def tokens(self) -> Mapping[str, Sequence[str]]: ...
    @property
    def kinds(self) -> Sequence[str]: ...
    def stacks(self, kind: str) -> tuple[str, str]: ...
    def of(self, kind: str, what: str) -> np.ndarray: ...


def attention_page(
    attention: Attended,
    title: str,
    beams: BeamTree | None = None,
    neuron_layers: Collection[int] | None = None,
) -> str:
    """One HTML document that shows the attention of an example.

    Args:
      title: of the document, plain text.
      beams: what the search kept and dropped; without it, that view is left out.
      neuron_layers: whose queries and keys the page holds, where they were collected. By default
        as many layers as keep the page within `BUDGET`, the last ones first.
    """
    data: dict[str, Any] = {
        "title": title,
        "texts": dict(attention.texts),
        "tokens": {stack: list(tokens) for stack, tokens in attention.tokens.items()},
        "kinds": {kind: _kind(attention, kind) for kind in attention.kinds},
        "beams": None if beams is None else _without_infinities(beams),
    }
    styles, scripts = list(map(asset, STYLES)), list(map(asset, SCRIPTS))

    def write() -> str:
        return page(title, asset("attention.html"), styles, scripts, data)

    if neuron_layers is None:
        left_out = _add_vectors(data["kinds"], attention, BUDGET - len(write().encode()) - 1000)
        reason = f"the page would exceed {BUDGET // 1_000_000} MB"
    else:
        left_out = _add_vectors(data["kinds"], attention, math.inf, neuron_layers)
        reason = "others were asked for"
    for kind, layers in left_out.items():
        named = ", ".join(map(str, sorted(layers)))
        data["kinds"][kind]["leftOut"] = f"Those of layers {named} are left out: {reason}."
    return write()


def _kind(attention: Attended, kind: str) -> dict[str, Any]:
    weights = attention.of(kind, "weights")
    queries, keys = attention.stacks(kind)
    return {
        "title": TITLES[kind],
        "queriesOf": queries,
        "keysOf": keys,
        "heads": weights.shape[1],
        "weights": list(map(pack_weights, weights)),
        "queries": [None] * len(weights),
        "keys": [None] * len(weights),
        "leftOut": "",
    }


def _add_vectors(
    kinds: Mapping[str, dict[str, Any]],
    attention: Attended,
    room: float,
    chosen: Collection[int] | None = None,
) -> dict[str, list[int]]:
    """Adds queries and keys to `room` bytes at most; returns the layers left out, by kind."""
    left_out: dict[str, list[int]] = {}
    for kind, layer, vectors in _vectors(attention):
        packed = {what: pack_scaled(values) for what, values in vectors.items()}
        size = sum(len(json.dumps(one)) for one in packed.values())
        if size > room or (chosen is not None and layer not in chosen):
            left_out.setdefault(kind, []).append(layer)
            continue
        room -= size
        for what, one in packed.items():
            kinds[kind][what][layer] = one
    return left_out


def _vectors(attention: Attended) -> Iterator[tuple[str, int, dict[str, np.ndarray]]]:
    """(kind, layer, {"queries": [H, T, K], "keys": [G, S, K]}), the last layers first."""
    found = {}
    for kind in reversed(attention.kinds):
        with contextlib.suppress(KeyError):  # they were not collected
            found[kind] = {what: attention.of(kind, what) for what in ("queries", "keys")}
    depth = max((len(vectors["queries"]) for vectors in found.values()), default=0)
    for layer in reversed(range(depth)):
        for kind, vectors in found.items():
            if layer < len(vectors["queries"]):
                yield kind, layer, {what: of[layer] for what, of in vectors.items()}


def _without_infinities(beams: BeamTree) -> dict[str, Any]:
    """JSON has no -inf, the log probability of what a constraint forbids: null stands for it."""
    nodes = [
        {name: None if value == -math.inf else value for name, value in node.items()}
        for node in beams["nodes"]
    ]
    return {**beams, "nodes": nodes}


# FOLDED analysis.pages.index_page: A page that lists other pages of its folder.


def index_page(pages: Sequence[tuple[str, str]]) -> str:
    """A document with a link for each page.

    Args:
      pages: the name of each file, which begins with the number of its line, and the line.
    """
    title = f"{len(pages)} page{'s' if len(pages) != 1 else ''}"
    scripts = [asset("document.js"), asset("index.js")]
    return page(title, asset("index.html"), [asset("theme.css")], scripts, list(pages))

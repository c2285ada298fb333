# SPDX-License-Identifier: Apache-2.0
"""Record of a beam search as a tree: the hypotheses it compared, kept and dropped, and why."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.decoding.beam_search import (
    BeamSearch,
    BeamStep,
    Carry,
    SearchSettings,
    advance,
    last_tokens,
    n_best,
)
from transformer_jax.decoding.interface import DecodeStep, Start, truncate_at_eos
from transformer_jax.summary import Summarized

Path = tuple[int, ...]
"""Tokens of a hypothesis."""

_advance = jax.jit(advance)
_n_best = jax.jit(n_best)


@dataclasses.dataclass(frozen=True)
class Node:
    """A hypothesis: its parent's tokens and one more.

    Attributes:
      id: index among the tree's nodes.
      parent: id of the hypothesis that it extends; None for the empty one.
      step: number of its tokens.
      state: "start", "kept" (alive after its step), "ended" (by EOS, or an output cut at the limit)
        or "dropped".
      score: log_prob / penalty, if it was compared with outputs.
    """

    id: int
    parent: int | None
    step: int
    token: str
    log_prob: float
    state: str
    score: float | None
    why: str


@dataclasses.dataclass(frozen=True, repr=False)
class BeamTree(Summarized):
    """All hypotheses that a beam search compared: of each alive one its K best extensions, and its
    extension by EOS.

    Attributes:
      beam_size: K.
      nodes: hypotheses, parents before children.
      outputs: ids of the outputs that the search returns, best first.
    """

    beam_size: int
    alpha: float
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def summary(self) -> Mapping[str, Any]:
        steps = max(node.step for node in self.nodes)
        outputs = {f"output {i}": self._written(node) for i, node in enumerate(self.outputs, 1)}
        return {"beam_size": self.beam_size, "nodes": len(self.nodes), "steps": steps, **outputs}

    def _written(self, node: int | None) -> str:
        tokens = []
        while node is not None:
            tokens.append(self.nodes[node].token)
            node = self.nodes[node].parent
        return " ".join(reversed(tokens))

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def beam_tree(
    search: BeamSearch,
    decode_step: DecodeStep,
    start: Start,
    *,
    num_outputs: int,
    max_length: int,
    to_pieces: Callable[[Sequence[int]], Sequence[str]],
) -> BeamTree:
    """Records the beam search for one sentence, with the same steps as `search.find`.

    `decode_step` is called once a step, so compile it.
    """
    settings, carry = search.begin(start, num_outputs, max_length)
    root = Node(0, None, 0, "", 0.0, "start", None, "where the search starts")
    nodes: dict[Path, Node] = {(): root}
    logits = start.logits
    while True:
        step = _advance(settings, carry, logits)
        _add_step(nodes, settings, carry, step)
        carry = step.after
        if carry.beams.done[0]:
            break
        logits, state = decode_step(last_tokens(carry), start.memory, carry.state)
        carry = dataclasses.replace(carry, state=state)
    outputs = _set_final_states(nodes, settings, carry)
    pieces = ["", *to_pieces([path[-1] for path in nodes if path])]
    with_text = (
        dataclasses.replace(node, token=piece)
        for node, piece in zip(nodes.values(), pieces, strict=True)
    )
    return BeamTree(search.beam_size, search.alpha, tuple(with_text), outputs)


def _add_step(
    nodes: dict[Path, Node], settings: SearchSettings, carry: Carry, step: BeamStep
) -> None:
    """Adds the candidates of a step, and whether the step kept them."""
    alive, candidates, best = jax.device_get((carry.beams.alive_tokens, step.candidates, step.best))
    length = int(carry.lengths[0]) + 1
    penalty = float(settings.penalty(jnp.int32(length)))
    best_ones = _best(settings.search.beam_size, "of its step")

    def add(path: Path, log_prob: float, state: str, why: str, score: float | None = None) -> None:
        if log_prob > -math.inf:  # no banned token, and no empty place
            parent = nodes[path[:-1]].id
            nodes[path] = Node(len(nodes), parent, length, "", log_prob, state, score, why)

    alive_after = set(zip(best.parents[0].tolist(), best.tokens[0].tolist(), strict=True))
    for number, row in enumerate(alive[0]):
        path = tuple(row[: length - 1].tolist())
        tokens = candidates.tokens[0, number].tolist()
        log_probs = candidates.log_probs[0, number].tolist()
        for token, log_prob in zip(tokens, log_probs, strict=True):
            if (number, token) in alive_after:
                add((*path, token), log_prob, "kept", f"{best_ones} that continue")
            else:
                add((*path, token), log_prob, "dropped", f"not {best_ones}")
        eos_log_prob = candidates.eos_log_probs[0, number]
        # Those that the search holds at last are set again.
        why = f"its end is not {best_ones}"
        if best.eos_log_probs[0, number] > -math.inf:
            why = f"ended, but {settings.search.beam_size} better ones had"
        with_eos = (*path, settings.search.eos_id)
        add(with_eos, float(eos_log_prob), "dropped", why, float(eos_log_prob / penalty))


def _set_final_states(
    nodes: dict[Path, Node], settings: SearchSettings, carry: Carry
) -> tuple[int, ...]:
    """Sets the final state of all hypotheses that ended or were alive at last. Returns the ids of
    the outputs."""
    search = settings.search
    length = int(carry.lengths[0])
    limit = int(settings.limits[0])
    beams, returned = jax.device_get((carry.beams, _n_best(settings, carry.beams)))
    best_outputs = _best(settings.num_outputs, "outputs" if settings.num_outputs > 1 else "output")

    def set_state(path: Path, state: str, why: str, score: float | None) -> None:
        nodes[path] = dataclasses.replace(nodes[path], state=state, why=why, score=score)

    def hypotheses(tokens: Any, values: Any) -> list[tuple[Path, float]]:
        return [
            (tuple(truncate_at_eos(row[:length].tolist(), search.eos_id)), value)
            for row, value in zip(tokens[0], values[0].tolist(), strict=True)
            if value > -math.inf
        ]

    for path, score in hypotheses(beams.finished_tokens, beams.finished_scores):
        set_state(path, "ended", f"ended, but not {best_outputs}", score)
    for path, log_prob in hypotheses(beams.alive_tokens, beams.alive_log_probs):
        reach = log_prob / float(settings.penalty(settings.limits)[0])
        if length == limit:
            why = f"cut by the limit of {limit} tokens, worse than the outputs"
        elif search.beam_size == 1:
            why = "still alive when the search stopped at its first end"
        else:
            certain = "still alive when the search was certain of its outputs"
            why = f"{certain}: its score could reach {reach:.3f} at most"
        set_state(path, "dropped", why, reach if length == limit else None)
    outputs = hypotheses(returned.tokens, returned.scores)
    for rank, (path, score) in enumerate(outputs, 1):
        how = "ended" if path[-1] == search.eos_id else f"cut by the limit of {limit} tokens"
        set_state(path, "ended", f"output {rank}: {how}", score)
    return tuple(nodes[path].id for path, _ in outputs)


def _best(count: int, noun: str) -> str:
    return f"the best {noun}" if count == 1 else f"among the {count} best {noun}"

"""A beam search as a tree: what it looked at in each step, what it kept, and why not the rest."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.decoding.beam_search import (
    BeamSearch,
    BeamStep,
    Carry,
    Rules,
    advance,
    last_tokens,
    n_best,
)
from transformer_jax.decoding.interface import DecodeStep, Start, truncate_at_eos

Path = tuple[int, ...]

_advance, _n_best = jax.jit(advance), jax.jit(n_best)


@dataclasses.dataclass(frozen=True)
class Node:
    """A hypothesis: that of its parent and one token more.

    Attributes:
      id: its place among the tree's nodes.
      parent: the id of what it extends; None: it is the empty one.
      step: how many tokens it has.
      token: its last one as text.
      log_prob: log P of all its tokens.
      state: "start", "kept" (it went on), "ended" (by EOS, or an output that the limit cut) or
        "dropped".
      score: log_prob / penalty, where it was compared with outputs.
      why: what gave it this state, in plain words.
    """

    id: int
    parent: int | None
    step: int
    token: str
    log_prob: float
    state: str
    score: float | None
    why: str


@dataclasses.dataclass(frozen=True)
class BeamTree:
    """All that a beam search looked at: of each hypothesis that went on its K best extensions and
    its end.

    Attributes:
      beam_size: K.
      alpha: exponent of the length penalty.
      nodes: parents before children.
      outputs: the ids of what the search returns, best first.
    """

    beam_size: int
    alpha: float
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """The fields as lists, dictionaries and numbers."""
        return {
            "beam_size": self.beam_size,
            "alpha": self.alpha,
            "nodes": [dataclasses.asdict(node) for node in self.nodes],
            "outputs": list(self.outputs),
        }


def beam_tree(
    search: BeamSearch,
    decode_step: DecodeStep,
    start: Start,
    *,
    num_outputs: int,
    max_length: int,
    to_pieces: Callable[[Sequence[int]], Sequence[str]],
) -> BeamTree:
    """Records the search for the outputs of one sentence; its steps are those of `search.find`.

    Args:
      search: what to record.
      decode_step: as in `find`; called once a step, so compile it.
      start: of one sentence.
      num_outputs: as in `find`.
      max_length: as in `find`.
      to_pieces: the text of each token.

    Raises:
      ValueError: there is more than one sentence, or as `find`.
    """
    if len(start.logits) != 1:
        raise ValueError(f"a tree is of one sentence; there are {len(start.logits)}")
    rules, carry = search.begin(start, num_outputs, max_length)
    root = Node(0, None, 0, "", 0.0, "start", None, "where the search starts")
    nodes: dict[Path, Node] = {(): root}
    logits = start.logits
    while True:
        step = _advance(rules, carry, logits)
        _grow(nodes, rules, carry, step)
        carry = step.after
        if carry.beams.done[0]:
            break
        logits, state = decode_step(last_tokens(carry), start.memory, carry.state)
        carry = dataclasses.replace(carry, state=state)
    outputs = _judge(nodes, rules, carry)
    pieces = ["", *to_pieces([path[-1] for path in nodes if path])]
    named = (
        dataclasses.replace(node, token=piece)
        for node, piece in zip(nodes.values(), pieces, strict=True)
    )
    return BeamTree(search.beam_size, search.alpha, tuple(named), outputs)


def _grow(nodes: dict[Path, Node], rules: Rules, search: Carry, step: BeamStep) -> None:
    """Adds what a step looked at, and whether it kept it."""
    alive, seen, best = jax.device_get((search.beams.alive_tokens, step.seen, step.best))
    length = int(search.length) + 1
    penalty = float(rules.penalty(jnp.int32(length)))
    best_ones = _best(rules.beam_size, "of its step")

    def add(path: Path, log_prob: float, state: str, why: str, score: float | None = None) -> None:
        if log_prob > -math.inf:  # no banned token, and no place without a hypothesis
            parent = nodes[path[:-1]].id
            nodes[path] = Node(len(nodes), parent, length, "", log_prob, state, score, why)

    kept = set(zip(best.parents[0].tolist(), best.tokens[0].tolist(), strict=True))
    for number, row in enumerate(alive[0]):
        path = tuple(row[: length - 1].tolist())
        words = seen.tokens[0, number].tolist(), seen.log_probs[0, number].tolist()
        for token, log_prob in zip(*words, strict=True):
            if (number, token) in kept:
                add((*path, token), log_prob, "kept", f"{best_ones} that go on")
            else:
                add((*path, token), log_prob, "dropped", f"not {best_ones}")
        log_prob, score = (float(seen.eos_log_probs[0, number] / x) for x in (1.0, penalty))
        if best.eos_log_probs[0, number] > -math.inf:
            add((*path, rules.eos_id), log_prob, "ended", "among the outputs that ended", score)
        else:
            add((*path, rules.eos_id), log_prob, "dropped", f"its end is not {best_ones}", score)


def _judge(nodes: dict[Path, Node], rules: Rules, search: Carry) -> tuple[int, ...]:
    """Says what became of all that ended and of what was alive at last; the ids of the outputs."""
    length, limit = int(search.length), int(rules.limits[0])
    beams, found = jax.device_get((search.beams, _n_best(rules, search.beams)))
    best_outputs = _best(rules.num_outputs, "outputs" if rules.num_outputs > 1 else "output")

    def judge(path: Path, state: str, why: str, score: float | None) -> None:
        nodes[path] = dataclasses.replace(nodes[path], state=state, why=why, score=score)

    for path, node in nodes.items():
        if node.state == "ended":
            judge(path, "dropped", f"ended, but {rules.beam_size} better ones had", node.score)
    for path, score in _of_rows(rules, beams.ended_tokens, beams.ended_scores, length):
        judge(path, "ended", f"ended, but not {best_outputs}", score)
    for path, log_prob in _of_rows(rules, beams.alive_tokens, beams.alive_log_probs, length):
        reach = log_prob / float(rules.penalty(rules.limits)[0])
        if length == limit:
            judge(path, "dropped", f"cut by the limit of {limit} tokens, behind the outputs", reach)
        elif rules.beam_size == 1:
            judge(path, "dropped", "still alive when the search stopped at its first end", None)
        else:
            certain = "still alive when the search was certain of its outputs"
            no_more = f"its score could reach {reach:.3f} at most"
            judge(path, "dropped", f"{certain}: {no_more}", None)
    outputs = _of_rows(rules, found.tokens, found.scores, length)
    for rank, (path, score) in enumerate(outputs, 1):
        how = "ended" if path[-1] == rules.eos_id else f"cut by the limit of {limit} tokens"
        judge(path, "ended", f"output {rank}: {how}", score)
    return tuple(nodes[path].id for path, _ in outputs)


def _best(count: int, what: str) -> str:
    return f"the best {what}" if count == 1 else f"among the {count} best {what}"


def _of_rows(rules: Rules, tokens: Any, values: Any, length: int) -> list[tuple[Path, float]]:
    """The hypotheses of the one sentence, each with its value; none where a place is empty."""
    return [
        (tuple(truncate_at_eos(row[:length].tolist(), rules.eos_id)), value)
        for row, value in zip(tokens[0], values[0].tolist(), strict=True)
        if value > -math.inf
    ]

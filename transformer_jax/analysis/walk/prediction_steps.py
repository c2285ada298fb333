"""From the last features to what a model says: logits and the table of the likeliest outputs."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.analysis.collecting import LOGITS
from transformer_jax.analysis.walk.attending import softmax
from transformer_jax.analysis.walk.catalogue import Where
from transformer_jax.analysis.walk.seen import Seen, number, quoted, some, step
from transformer_jax.analysis.walk.step import Axis, Step
from transformer_jax.models.apply import apply
from transformer_jax.models.classifier import TextClassifier, TokenClassifier
from transformer_jax.parallel import hosts

NUM_SHOWN = 5
"""Outputs that a table shows."""


def prediction_steps(seen: Seen) -> Iterator[Step]:
    """Logits and, where no token is written after the other, what they mean."""
    stack = seen.reading.last_stack
    if isinstance(seen.model, TokenClassifier | TextClassifier):
        yield from _class_steps(seen)
        return
    if "prediction_head" in seen.params:
        yield _head_step(seen, stack)
    yield _logits_step(seen, stack)
    if stack == "decoder":
        last = len(seen.reading.tokens[stack]) - 1
        where = f"behind {seen.token(stack, last)}"
        yield table(seen, "next", (), seen.values[LOGITS][last], where)
    else:
        ids = np.array(seen.reading.tokens[stack])
        for place in np.flatnonzero(ids == seen.mask).tolist():
            where = f"at place {place}, where {seen.token(stack, place)} stands"
            yield table(seen, "filled", (f"place {place}",), seen.values[LOGITS][place], where)


def table(
    seen: Seen,
    kind: str,
    group: tuple[str, ...],
    logits: np.ndarray,
    place: str,
    written: str = "",
) -> Step:
    """The likeliest outputs, with logit and probability [N, 2].

    Args:
      group: behind ("prediction",), or the whole group of a decoding step.
      logits: [V].
      place: where, as a part of a sentence.
      written: what is done with them, further sentences.
    """
    probabilities = softmax(logits.astype(np.float64))
    best = np.argsort(-probabilities, kind="stable")[:NUM_SHOWN]
    names = tuple(seen.name_of(int(i)) for i in best)
    said = (
        f"The softmax over all {len(logits):,} makes probabilities of the logits: "
        f"{quoted(names[0])} has {100 * probabilities[best[0]]:.1f}% {place}.{written}"
    )
    values = np.stack([logits[best], probabilities[best]], axis=1)
    axes = (Axis("candidate", names), Axis("number", ("logit", "probability")))
    group = group if group[:1] == ("decoding",) else ("prediction", *group)
    return step(kind, group, said, values, axes, (LOGITS,), (0, 1))


def _head_step(seen: Seen, stack: str) -> Step:
    """BERT's features as they meet the embedding matrix."""
    features = _unprojected(seen.model, seen.params, seen.reading.inputs)[: len(seen.values[stack])]
    at, c = seen.example(stack), seen.config
    said = (
        f"One more layer, its {c.activation} and its norm turn the features of "
        f"{seen.token(stack, at)} to {some(features[at])}."
    )
    group, axes = ("prediction",), (seen.tokens(stack), "feature")
    return step("prediction_head", group, said, features, axes, (stack,), (at,))


def _unprojected(model: Any, params: Any, inputs: Sequence[np.ndarray]) -> np.ndarray:
    found = jax.jit(lambda p, x: apply(model, p, *x, method="unprojected").x)(params, inputs)
    return np.asarray(hosts.to_host(found))[0]


def _logits_step(seen: Seen, stack: str) -> Step:
    c, logits, at = seen.config, seen.values[LOGITS], seen.example(stack)
    tied = c.tie_embeddings in ("all", "target")
    formula = f"x {'E' if tied else 'U'}^T"
    formula = f"({formula})/√(d_model)" if c.scale_logits else formula
    if c.logits_bias or "prediction_head" in seen.params:
        formula += " + c"
    formula = f"k tanh(({formula})/k)" if c.final_logit_cap else formula
    best = int(logits[at].argmax())
    matrix = "rows of the embedding matrix E again" if tied else "rows of a matrix U of their own"
    said = (
        f"The features of {seen.token(stack, at)} meet {logits.shape[1]:,} {matrix}, one for each "
        f"token of the vocabulary; the highest logit, {number(logits[at, best])}, is that of "
        f"{quoted(seen.name_of(best))}."
    )
    entries = Axis("vocabulary entry", tuple(map(seen.name_of, range(logits.shape[1]))))
    group, axes, places = ("prediction",), (seen.tokens(stack), entries), (stack, LOGITS)
    formula = f"z = {formula}"
    return step("logits", group, said, logits, axes, places, (at, best), formula=formula)


def _class_steps(seen: Seen) -> Iterator[Step]:
    """What a classifier says of a text, or of each token."""
    logits, stack = seen.values[LOGITS], seen.reading.last_stack
    if not isinstance(seen.model, TokenClassifier):
        yield table(seen, "classes", (), logits[0], "for the text")
        return
    where = Where("transformer_jax/models/classifier.py", "TokenClassifier.__call__")
    for i, row in enumerate(logits):
        of_token = table(seen, "classes", (f"token {i}",), row, f"for {seen.token(stack, i)}")
        yield dataclasses.replace(of_token, where=where)

# SPDX-License-Identifier: Apache-2.0
"""Checks losses: cross-entropy of logits and labels, with masks and smoothing."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes.answer import Answer, Trial, diagnose
from transformer_jax.lab.mistakes.attention import softmax
from transformer_jax.lab.mistakes.calls import SECONDS, RejectedError, Subject

BATCH, TIME, VOCABULARY = 3, 6, 8
LENGTHS = np.array([6, 3, 2])
SMOOTHING = 0.2


def cross_entropy(
    logits: np.ndarray,
    labels: np.ndarray,
    keep: np.ndarray,
    *,
    reduction: str = "mean",
    softmaxes: int = 1,
    sign: float = 1.0,
    shift: int = 0,
    counted: str = "kept",
    divisor: str = "kept",
    smooth: str = "all",
    smoothing: float = 0.0,
    divergence: bool = False,
    unit: str = "nats",
) -> np.ndarray:
    """Cross-entropy of logits [B, T, V] and labels [B, T], right by default."""
    if shift > 0:
        logits, labels, keep = logits[:, :-shift], labels[:, shift:], keep[:, shift:]
    elif shift < 0:
        logits, labels, keep = logits[:, -shift:], labels[:, :shift], keep[:, :shift]
    vocabulary = logits.shape[-1]
    logs = logits
    for _ in range(softmaxes - 1):
        logs = softmax(logs)
    if softmaxes > 0:
        logs = np.log(softmax(logs))
    elif softmaxes < 0:
        logs = softmax(logs)
    one_hot = np.eye(vocabulary)[labels]
    targets = {
        "all": (1 - smoothing) * one_hot + smoothing / vocabulary,
        "others": (1 - smoothing) * one_hot + smoothing / (vocabulary - 1) * (1 - one_hot),
        "added": one_hot + smoothing / vocabulary,
        "eps": (1 - smoothing) * one_hot + smoothing,
        "target": (1 - smoothing) * one_hot,
        "none": one_hot,
    }[smooth]
    losses = -sign * (targets * logs).sum(-1) / (np.log(2) if unit == "bits" else 1)
    if divergence:
        losses = losses + (targets * np.log(targets + 1e-30)).sum(-1)
    weights = np.ones(keep.shape) if counted == "all" else keep.astype(np.float64)
    losses = losses * weights
    if reduction == "none":
        return losses
    if reduction == "rows":
        return losses.sum(-1) / weights.sum(-1)
    if reduction == "row sums":
        return losses.sum(-1)
    if reduction == "sum":
        return losses.sum()
    if reduction == "sum / batch":
        return losses.sum() / len(losses)
    if divisor == "rows":
        return (losses.sum(-1) / weights.sum(-1)).mean()
    divisors = {
        "kept": weights.sum(),
        "all": weights.size,
        "vocabulary": weights.sum() * vocabulary,
    }
    return losses.sum() / divisors[divisor]


def check_loss(
    fn: Callable[..., Any],
    *,
    pad: int | None = None,
    shifted: bool | None = None,
    smoothing: float = 0.0,
    seconds: float = SECONDS,
) -> Answer:
    """Finds the mistake in a cross-entropy `fn(logits, labels)`.

    More parameters are recognized: a mask (1 counts), a padding id, the smoothing.

    Args:
      pad: the padding label of functions that have it inside.
      shifted: True if the labels that it is given are shifted already, False if they equal the
        inputs; asked for if the function shifts labels.
      smoothing: label smoothing of functions that have it inside.
    """
    roles = ["logits", "labels", "mask", "pad", "smoothing"]
    subject = Subject(fn, roles, seconds)
    if "labels" not in subject.by_name:
        as_tokens = Subject(fn, ["logits", "tokens", "mask", "pad", "smoothing"], seconds)
        if "tokens" in as_tokens.by_name:
            subject = as_tokens
            shifted = False if shifted is None else shifted
    padded = [False, True] if subject.has("mask") or subject.has("pad") or pad else [False]
    if pad == 0:
        padded = [False, True]
    smooth = [0.0, SMOOTHING] if subject.has("smoothing") and not smoothing else [smoothing]
    answer = None
    for has_padding, rate in itertools.product(padded, smooth):
        trials = [*_trials(subject, has_padding, rate, 0 if pad is None else pad)]
        if not trials:
            if answer is None:
                continue
            return answer
        shifts = [0 if shifted or shifted is None else 1]
        right = diagnose("check_loss", "loss", _with_shift(trials, shifts[0]))
        if not right.right and shifted is None:
            inside = diagnose("check_loss", "loss", _with_shift(trials, 1))
            if inside.right:
                raise UserError(
                    f"{subject.name} shifts labels by one. Say shifted=False if the labels it is "
                    "given equal the inputs, shifted=True if they are shifted already"
                )
        answer = right
        if not answer.right:
            return answer
    if answer is None:
        raise subject.refusal()
    return answer


def _with_shift(trials: list[Trial], shift: int) -> list[Trial]:
    return [
        (layout, output, reference, {**options, "shift": shift})
        for layout, output, reference, options in trials
        if not shift or "[batch, time" in layout
    ]


def _trials(subject: Subject, padded: bool, smoothing: float, pad: int) -> Iterator[Trial]:
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(BATCH, TIME, VOCABULARY))
    ids = np.delete(np.arange(VOCABULARY), pad) if 0 <= pad < VOCABULARY else np.arange(VOCABULARY)
    labels = rng.choice(ids, (BATCH, TIME))
    keep = np.ones((BATCH, TIME), bool)
    if padded:
        keep = np.arange(TIME) < LENGTHS[:, None]
        labels = np.where(keep, labels, pad)
    inputs = {"logits": logits}
    name = next(n for n, role in subject.roles.items() if role == "logits")
    if name.lower() != "logits":
        inputs |= {"log-probabilities": np.log(softmax(logits)), "probabilities": softmax(logits)}
    one_hot = np.eye(VOCABULARY)[labels]
    layouts: dict[str, tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, tuple[int, ...]]] = {
        "[batch, time, vocabulary]": (lambda a: a, labels, (BATCH, TIME)),
        "[batch * time, vocabulary]": (
            lambda a: a.reshape(-1, VOCABULARY),
            labels.reshape(-1),
            (BATCH * TIME,),
        ),
        "[batch, vocabulary, time]": (lambda a: a.swapaxes(1, 2), labels, (BATCH, TIME)),
        "[batch, time, vocabulary], one-hot labels": (lambda a: a, one_hot, (BATCH, TIME)),
    }
    accepted = ""
    for (layout, (move, given, tokens)), (kind, values) in itertools.product(
        layouts.items(), inputs.items()
    ):
        if accepted and layout != accepted:  # a mean of rows is right for one row
            return
        arguments = {"logits": move(values), "labels": given, "tokens": given}
        if padded and subject.has("mask"):
            arguments["mask"] = keep.reshape(tokens).astype(np.float64)
        if padded and subject.has("pad"):
            arguments["pad"] = pad
        if subject.has("smoothing"):
            arguments["smoothing"] = smoothing
        if not padded and "mask" in [subject.roles[name] for name in subject.required]:
            arguments["mask"] = np.ones(tokens)
        if not padded and "pad" in [subject.roles[name] for name in subject.required]:
            arguments["pad"] = pad
        try:
            output = np.asarray(subject(**arguments), np.float64)
        except (RejectedError, TypeError, ValueError):
            continue
        kinds = {(): ["mean", "sum", "sum / batch"], (BATCH,): ["rows", "row sums"]}
        kinds |= {(BATCH * TIME,): ["none"], (BATCH, TIME): ["none"], (BATCH, TIME - 1): ["none"]}
        if output.shape in kinds:
            accepted = layout
        for reduction in kinds.get(output.shape, []):

            def loss(tokens: tuple[int, ...] = tokens, **options: Any) -> np.ndarray:
                result = cross_entropy(logits, labels, keep, **options)
                return result.reshape(tokens) if result.size == BATCH * TIME else result

            smooth: list[tuple[str, dict[str, Any]]] = [("", {})]
            if smoothing:
                smooth = [
                    (f", {words}{less}", {"smooth": form, "divergence": divergence})
                    for form, words in (("all", "eps / V each"), ("others", "eps / (V - 1)"))
                    for divergence, less in ((False, ""), (True, ", less the entropy"))
                ]
            for words, options in smooth:
                title = f"{kind} {layout}, {reduction}{words}"
                given_options = options | {"reduction": reduction, "smoothing": smoothing}
                yield title, output, loss, given_options

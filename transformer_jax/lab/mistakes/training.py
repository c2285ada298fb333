# SPDX-License-Identifier: Apache-2.0
"""Checks training: schedules, inputs and targets of a batch, averages, accumulated gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes.answer import Answer, Trial, diagnose
from transformer_jax.lab.mistakes.answer import found as finding
from transformer_jax.lab.mistakes.calls import SECONDS, RejectedError, Subject


def rates(
    steps: np.ndarray,
    kind: str,
    d_model: float,
    warmup: float,
    peak: float,
    total: float,
    *,
    meet: int = 0,
    pick: str = "min",
    power: float = -1.5,
    width: float = -0.5,
    decay: float = -0.5,
    progress: str = "after",
) -> np.ndarray:
    """Learning rates at steps: those of the paper ("paper"), or a linear warm-up to a peak, then
    "inverse root", "cosine", "linear" or "constant"."""
    warmup = warmup + meet
    if kind == "paper":
        falling = steps**decay
        rising = steps * warmup**power
        scale = d_model**width
    else:
        begin = 0 if progress == "whole" else warmup
        share = np.clip((steps - begin) / (total - begin), 0, 1)
        falling = {
            "inverse root": np.sqrt(warmup / np.maximum(steps, 1e-9)),
            "cosine": 0.5 * (1 + np.cos(np.pi * share)),
            "linear": 1 - share,
            "constant": np.ones_like(steps),
        }[kind]
        rising = steps / warmup
        scale = peak
    before = steps <= warmup if kind in ("cosine", "linear", "constant") else rising < falling
    top = rising[np.argmin(np.abs(steps - warmup))]
    chosen = {
        "min": np.where(before, rising, falling),
        "max": np.maximum(rising, falling),
        "decay": falling,
        "warmup": rising,
        "flat": np.minimum(rising, top),
    }
    return scale * chosen[pick]


def check_schedule(
    fn: Callable[..., Any],
    *,
    warmup: int | None = None,
    d_model: int | None = None,
    peak: float | None = None,
    total: int | None = None,
    first_step: int = 0,
    seconds: float = SECONDS,
) -> Answer:
    """Finds the mistake in a schedule `fn(step) -> learning rate`.

    Args:
      warmup, d_model, peak, total: its numbers, where they are no parameters of the function: steps
        of warm-up; for the paper's schedule d_model; for others the largest rate and all steps.
      first_step: 1 if the function is never called with 0.
    """
    roles = ["step", "d_model", "warmup", "peak", "total", "factor"]
    subject = Subject(fn, roles, seconds)
    numbers = {"warmup": warmup, "d_model": d_model, "peak": peak, "total": total}
    defaults = {"warmup": 8, "d_model": 64, "peak": 0.5, "total": 40}
    for name, default in defaults.items():
        if numbers[name] is None and subject.has(name):
            numbers[name] = default
    if numbers["warmup"] is None or (numbers["d_model"] is None and numbers["peak"] is None):
        raise UserError(
            f"{subject.name}: say warmup= and d_model= (the paper's schedule), or warmup=, peak= "
            "and total="
        )
    length = int(numbers["total"] or 5 * numbers["warmup"])
    values = {k: v for k, v in numbers.items() if subject.has(k)} | {"factor": 1.0}
    output = []
    for step in range(1, length + 1):
        try:
            output.append(float(np.asarray(subject(step=step, **values)).item()))
        except (RejectedError, TypeError, ValueError, AttributeError):
            raise subject.refusal() from None
    steps = np.arange(1.0, length + 1)
    kinds = ["paper"] if numbers["d_model"] else []
    if numbers["peak"]:
        kinds += ["inverse root", "constant"] + (["cosine", "linear"] if numbers["total"] else [])
    fixed = [numbers["d_model"] or 1, numbers["warmup"], numbers["peak"] or 1, length]
    trials: list[Trial] = []
    for begin, kind in ((begin, kind) for begin in (1, 0) for kind in kinds):

        def schedule(begin: int = begin, kind: str = kind, **options: Any) -> np.ndarray:
            return rates(steps + 1 - begin, kind, *map(float, fixed), **options)

        trials.append((f"{kind}, steps from {begin}", np.array(output), schedule, {}))
    answer = diagnose("check_schedule", "schedule", trials)
    if first_step == 1 or answer.mistakes:
        return answer
    try:
        first = float(np.asarray(subject(step=0, **values)).item())
        reason = f"the rate at step 0 is {first}"
    except RejectedError as error:
        first = float("nan")
        reason = f"at step 0 {error}"
    if np.isfinite(first):
        return answer
    return Answer(answer.check, False, answer.layout, [finding("step_0", reason)])


def check_training(fn: Callable[..., Any], *, seconds: float = SECONDS) -> Answer:
    """Finds the mistake in a part of a training step.

    `fn(tokens)` or `fn(tokens, bos)` makes inputs and targets; `fn(losses, counts)` averages means
    of batches; `fn(gradients)` averages gradients of equal micro-batches, and
    `fn(params, batches, grad_fn, lr)` updates with them: `grad_fn(params, batch)`, or `loss_fn`, is
    given.
    """
    names = set(_by_name(fn))
    rng = np.random.default_rng(0)
    if {"params", "batches"} <= names or "gradients" in names:
        return _check_accumulation(fn, "gradients" in names, rng, seconds)
    if "losses" in names:
        return _check_average(Subject(fn, ["losses", "counts"], seconds), rng)
    subject = Subject(fn, ["tokens", "bos", "eos"], seconds)
    tokens = rng.permutation(np.arange(3, 15)).reshape(2, 6)
    values = {"tokens": tokens, "bos": 1, "eos": 2}
    try:
        result = subject(**values)
    except RejectedError:
        raise subject.refusal() from None
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise UserError(f"{subject.name} returns {type(result).__name__}: give (inputs, targets)")
    inputs, targets = (np.asarray(part, np.float64) for part in result)
    if inputs.shape != targets.shape:
        raise UserError(
            f"{subject.name} returns inputs {list(inputs.shape)} and targets "
            f"{list(targets.shape)}: they have one shape"
        )

    def batch(shift: int = 1, start: bool = True, end: bool = False) -> np.ndarray:
        column = np.ones((2, 1), int)
        whole = np.concatenate([column, tokens], 1) if subject.has("bos") and start else tokens
        whole = np.concatenate([whole, 2 * column], 1) if end else whole
        if shift == 0:
            return np.stack([whole, whole])
        pair = whole[:, : -abs(shift)], whole[:, abs(shift) :]
        return np.stack(pair if shift > 0 else pair[::-1])

    output = np.stack([inputs, targets])
    cases = [("targets are the next tokens", {"end": False})]
    if subject.has("eos"):
        cases.insert(0, ("targets are the next tokens, then the end", {"end": True}))
    trials: list[Trial] = [(words, output, batch, options) for words, options in cases]
    return diagnose("check_training", "batch", trials)


def _by_name(fn: Callable[..., Any]) -> set[str]:
    groups = (["params", "batches", "grad", "loss_fn", "lr"], ["gradients"], ["losses", "counts"])
    names: set[str] = set()
    for roles in groups:
        try:
            names |= Subject(fn, roles).by_name
        except UserError:
            continue
    return names


def _check_average(subject: Subject, rng: np.random.Generator) -> Answer:
    losses = rng.uniform(1, 3, 4)
    counts = np.array([10.0, 1.0, 3.0, 2.0])

    def average(weights: str = "counts") -> np.ndarray:
        sums = {"counts": counts.sum(), "sum": 1.0, "batches": len(losses)}
        if weights == "none":
            return np.asarray(losses.mean())
        return np.asarray((losses * counts).sum() / sums[weights])

    try:
        output = subject.array((), losses=losses, counts=counts)
    except RejectedError:
        raise subject.refusal() from None
    return diagnose("check_training", "average", [("mean of all tokens", output, average, {})])


def _check_accumulation(
    fn: Callable[..., Any], averages: bool, rng: np.random.Generator, seconds: float
) -> Answer:
    """Checks gradients of three micro-batches: the gradient is params - target of the batch."""
    roles = ["gradients"] if averages else ["params", "batches", "grad", "loss_fn", "lr"]
    subject = Subject(fn, roles, seconds)
    params = rng.normal(size=4)
    targets = [rng.normal(size=4) for _ in range(3)]
    lr = 0.1

    def updated(divide: str = "once", sign: float = 1.0, form: str = "params") -> np.ndarray:
        now = params
        gradients = []
        for target in targets:
            gradients.append(now - target)
            if divide == "between":
                now = now - sign * lr * gradients[-1]
        total = np.sum(gradients, 0)
        scales = {"once": total / 3, "no": total, "twice": total / 9}
        scales |= {"last": gradients[-1], "first": gradients[0], "between": (params - now) / lr}
        return scales[divide] if form == "gradient" else params - sign * lr * scales[divide]

    values = {
        "gradients": [params - target for target in targets],
        "params": params,
        "batches": targets,
        "grad": lambda now, batch: now - batch,
        "loss_fn": lambda now, batch: ((now - batch) ** 2).sum() / 2,
        "lr": lr,
    }
    try:
        output = subject.array((4,), **values)
    except RejectedError:
        raise subject.refusal() from None
    forms = ["gradient"] if averages else ["params", "gradient"]
    trials: list[Trial] = [(f"returns the {f}", output, updated, {"form": f}) for f in forms]
    return diagnose("check_training", "accumulation", trials)

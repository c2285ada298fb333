# SPDX-License-Identifier: Apache-2.0
"""Checks layers and whole models: norm, residual, dropout, and what a model may depend on."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes.answer import TOLERANCE, Answer, Finding, diagnose, difference
from transformer_jax.lab.mistakes.answer import found as finding
from transformer_jax.lab.mistakes.calls import SECONDS, RejectedError, Subject
from transformer_jax.lab.mistakes.inputs import check_positions, embeds

BATCH, TIME = 3, 7
PARTS = ("norm", "residual", "dropout", "pool", "model")
EPSILON = 1e-5


def check_model(
    fn: Callable[..., Any],
    *,
    part: str | None = None,
    causal: bool = True,
    pad: int | None = None,
    cached: Callable[..., Any] | None = None,
    vocab_size: int = 10,
    width: int = 16,
    seconds: float = SECONDS,
) -> Answer:
    """Finds the mistake in a model `fn(tokens) -> logits [B, T, V]`, or in a layer.

    A layer is `fn(x, gamma, beta)` (norm), `fn(x, sublayer, norm)` (residual), `fn(x, mask)` (pool:
    the mean over time of what counts) or `fn(x, rate, training)` (dropout, also with
    `deterministic` and `rng`).

    Args:
      part: "norm", "residual", "dropout", "pool" or "model", where the parameters do not tell.
      causal: the model may not see later tokens.
      pad: the padding token, to test that trailing padding changes nothing.
      cached: the model's logits [B, T, V] of tokens, computed by decoding with its cache.
      vocab_size: tokens are drawn below it.
      width: features that a layer takes.
    """
    if part not in (None, *PARTS):
        raise UserError(f"part={part!r}: one of {', '.join(PARTS)}")
    if part is None and embeds(fn):
        return check_positions(fn, width=width, seconds=seconds)
    part = part or _part_of(fn)
    rng = np.random.default_rng(0)
    if part == "model":
        subject = Subject(fn, ["tokens"], seconds)
        return _check_whole(subject, rng, causal, pad, cached, vocab_size)
    if part == "dropout":
        return _check_dropout(fn, seconds)
    x = rng.normal(1.0, 2.0, (BATCH, TIME, width))
    if part == "pool":
        return _check_pool(Subject(fn, ["x", "mask"], seconds), x)
    if part == "residual":
        return _check_residual(Subject(fn, ["x", "sublayer", "norm"], seconds), x)
    subject = Subject(fn, ["x", "scale", "shift", "norm_eps"], seconds)
    scale, shift = rng.normal(size=(2, width))
    has_affine = subject.has("scale")

    def normed(
        axis: Any = -1, ddof: int = 0, root: bool = True, center: bool = True, affine: str = "both"
    ) -> np.ndarray:
        axes = axis if isinstance(axis, int) else tuple(axis)
        mean = x.mean(axes, keepdims=True)
        if center:
            variance = x.var(axes, ddof=ddof, keepdims=True)
        else:
            variance = (x * x).mean(axes, keepdims=True)
        result = (x - mean * center) / (variance + EPSILON) ** (0.5 if root else 1)
        factors = {"both": scale, "none": 1.0, "swapped": shift, "scale": scale}
        offsets = {"both": shift, "none": 0.0, "swapped": scale, "scale": 0.0}
        return result * factors[affine] + offsets[affine] if has_affine else result

    try:
        output = subject.array(x.shape, x=x, scale=scale, shift=shift, norm_eps=EPSILON)
    except RejectedError:
        raise subject.refusal() from None
    options: dict[str, Any] = {} if subject.has("shift") else {"affine": "scale"}
    if "rms" in subject.name.lower():
        options = {"center": False, "affine": "scale"}
    return diagnose("check_model", "norm", [("over features", output, normed, options)])


def _part_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", type(fn).__name__).lower()
    for part in ("norm", "dropout", "residual", "pool"):
        if part in name:
            return part
    roles = {"residual": "sublayer", "dropout": "rate", "norm": "scale", "pool": "mask"}
    roles["model"] = "tokens"
    for part, role in roles.items():
        if (
            role
            in Subject(fn, ["x", role, "norm", "shift", "train", "deterministic", "rng"]).by_name
        ):
            return part
    raise UserError(f"{name}: what is it? Say part=, one of {', '.join(PARTS)}")


def _check_pool(subject: Subject, x: np.ndarray) -> Answer:
    keep = np.arange(TIME) < np.array([[7], [4], [2]])

    def pooled(counted: str = "kept", divisor: str = "kept") -> np.ndarray:
        weights = np.where(counted == "all", 1.0, keep)[..., None]
        divisors = weights.sum(1) if divisor == "kept" else TIME
        return (x * weights).sum(1) / divisors

    try:
        output = subject.array(pooled().shape, x=x, mask=keep.astype(np.float64))
    except RejectedError:
        raise subject.refusal() from None
    return diagnose("check_model", "pool", [("mean over time", output, pooled, {})])


def _check_residual(subject: Subject, x: np.ndarray) -> Answer:
    def sublayer(a: Any, *_: Any) -> Any:
        return a + 0.3 * a * a

    def norm(a: Any, *_: Any) -> Any:
        return a / (1 + (a * a).sum(-1)[..., None])

    def residual(form: str = "post") -> np.ndarray:
        return {
            "post": lambda: norm(x + sublayer(x)),
            "pre": lambda: x + sublayer(norm(x)),
            "both": lambda: x + norm(sublayer(norm(x))),
            "branch": lambda: x + norm(sublayer(x)),
            "normed": lambda: norm(x) + sublayer(norm(x)),
            "after": lambda: norm(x) + sublayer(x),
            "none": lambda: norm(sublayer(x)),
            "none_pre": lambda: sublayer(norm(x)),
            "none_bare": lambda: sublayer(x),
        }[form]()

    try:
        output = subject.array(x.shape, x=x, sublayer=sublayer, norm=norm)
    except RejectedError:
        raise subject.refusal() from None
    words = {
        "post": "norm after the sum",
        "pre": "norm before the layer",
        "both": "norms around it",
    }
    trials = [(text, output, residual, {"form": form}) for form, text in words.items()]
    return diagnose("check_model", "residual", trials)


def _check_dropout(fn: Any, seconds: float) -> Answer:
    """Checks the share that is dropped, the scale of what is kept, and evaluation."""
    subject = Subject(fn, ["x", "rate", "train", "deterministic", "rng"], seconds)
    rate = 0.2
    x = np.ones((200, 50))
    outputs = {}
    for training in (True, False):
        if hasattr(fn, "train") and hasattr(fn, "eval"):  # a module of PyTorch
            fn.train(training)
            rate = getattr(fn, "p", rate)
        values = {"x": x, "rate": rate, "train": training, "deterministic": not training}
        for rng in (np.random.default_rng(0), jax.random.key(0), 0):
            try:
                outputs[training] = subject.array(x.shape, **values, rng=rng)
                break
            except RejectedError:
                continue
        else:
            raise subject.refusal()
    share = float((outputs[True] == 0).mean())
    largest = float(outputs[True].max())
    findings = []
    changed = difference(outputs[False], x)
    switch = subject.has("train") or subject.has("deterministic") or hasattr(fn, "eval")
    if switch and changed > TOLERANCE:
        findings.append(finding("dropout_at_evaluation", f"evaluation changes x by {changed:.2g}"))
    if share == 0:
        findings.append(finding("dropout_missing", f"no element is 0 at the rate {rate}"))
    elif abs(share - (1 - rate)) < 0.05 and abs(share - rate) > 0.05:
        findings.append(finding("dropout_inverted", f"{share:.0%} are 0 at the rate {rate}"))
    elif abs(largest - 1) < 1e-3:
        evidence = f"what is kept is multiplied by {largest:.3g}, not by {1 / (1 - rate):.3g}"
        findings.append(finding("dropout_unscaled", evidence))
    evidence = f"{share:.1%} are 0 at the rate {rate}, others are multiplied by {largest:.4g}"
    right = abs(share - rate) < 0.05 and abs(largest - 1 / (1 - rate)) < 1e-3 and not findings
    return Answer("check_model", right, "dropout", findings, evidence=evidence)


def _check_whole(
    subject: Subject,
    rng: np.random.Generator,
    causal: bool,
    pad: int | None,
    cached: Callable[..., Any] | None,
    vocab_size: int,
) -> Answer:
    """Changes inputs, and looks at which outputs change."""
    drawn = np.arange(vocab_size) if pad is None else np.delete(np.arange(vocab_size), pad)
    tokens = rng.choice(drawn, (BATCH, TIME))
    tokens[:, 1] = (tokens[:, 0] + 1) % vocab_size  # two that differ, to swap

    def logits(ids: np.ndarray, of: Subject = subject) -> np.ndarray:
        try:
            result = np.asarray(of(tokens=ids), np.float64)
        except RejectedError:
            raise of.refusal() from None
        if result.ndim != 3 or result.shape[:2] != ids.shape:
            raise UserError(
                f"{of.name} returns the shape {list(result.shape)} for tokens {list(ids.shape)}; "
                "a model returns logits [batch, time, vocabulary]"
            )
        return result

    output = logits(tokens)
    findings: list[Finding] = []

    def compare(name: str, text: str, first: np.ndarray, second: np.ndarray) -> None:
        change = difference(first, second)
        if change > TOLERANCE:
            findings.append(finding(name, f"{text} by {change:.2g}"))

    again = logits(tokens)
    if difference(again, output) > TOLERANCE:
        compare(
            "dropout_at_evaluation", "a second call with the same tokens differs", again, output
        )
        return Answer("check_model", False, "[batch, time, vocabulary]", findings)
    other = tokens.copy()
    other[1] = rng.permutation(tokens[1])[::-1]
    other[1, 0] = drawn[(np.searchsorted(drawn, other[1, 0]) + 1) % len(drawn)]
    text = "other tokens in row 1 change row 0"
    compare("rows_mix", text, logits(other)[0], output[0])
    if causal:
        for place in range(1, TIME):
            other = tokens.copy()
            other[:, place] = drawn[(np.searchsorted(drawn, tokens[:, place]) + 1) % len(drawn)]
            changed = np.abs(logits(other) - output).max((0, 2))[:place]
            if (changed > TOLERANCE * np.abs(output).max()).any():
                first = int(changed.argmax())
                evidence = f"the token at {place} changes the logits at {first} by "
                findings.append(finding("future_leaks", f"{evidence}{changed[first]:.2g}"))
                break
    swapped = tokens.copy()
    swapped[:, [0, 1]] = tokens[:, [1, 0]]
    moved = difference(logits(swapped)[:, 2:], output[:, 2:])
    if moved <= TOLERANCE:
        evidence = f"swapping the first two tokens changes later logits by {moved:.1e}"
        findings.append(finding("positions_missing", evidence))
    if pad is not None:
        longer = np.concatenate([tokens, np.full((BATCH, 2), pad)], 1)
        text = "two more padding tokens change the logits before them"
        compare("padding_leaks", text, logits(longer)[:, :TIME], output)
    sums = output.sum(-1)
    if output.min() >= 0 and np.abs(sums - 1).max() < 1e-3:
        findings.append(finding("returns_probabilities", "all outputs are positive and sum to 1"))
    if cached is not None:
        steps = logits(tokens, Subject(cached, ["tokens"]))
        changed = np.abs(steps - output).max((0, 2)) / np.abs(output).max()
        if changed.max() > TOLERANCE:
            first = int((changed > TOLERANCE).argmax())
            evidence = f"logits differ from position {first} on, by {changed.max():.2g}"
            findings.append(finding("cache_differs", evidence))
    layout = "[batch, time, vocabulary]" + (", causal" if causal else "")
    evidence = "what may not change its logits does not"
    return Answer("check_model", not findings, layout, findings, evidence=evidence)

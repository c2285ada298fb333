# SPDX-License-Identifier: Apache-2.0
"""Checks layers and whole models: norm, residual, dropout, and what a model may depend on."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes.answer import TOLERANCE, Answer, Finding, diagnose, difference
from transformer_jax.lab.mistakes.calls import SECONDS, Subject, Trial

BATCH, TIME = 3, 7
KEEP = (np.arange(TIME) < np.array([[7], [4], [2]])).astype(np.float64)
EPSILON = 1e-5
ROLES: Mapping[str, Sequence[str]] = {
    "residual": ["sublayer", "x", "norm"],
    "dropout": ["rate", "x", "train", "deterministic", "rng"],
    "norm": ["scale", "x", "shift", "norm_eps"],
    "pool": ["mask", "x"],
    "model": ["tokens"],
}
"""Part -> roles of its parameters, that which tells the part first."""


def normed(x: np.ndarray, scale: Any, shift: Any, center: bool = True, **wrong: Any) -> np.ndarray:
    """LayerNorm over features, without `center` RMSNorm; `wrong` are options of table.toml."""
    axes = tuple(wrong.get("axis", [-1]))
    mean = x.mean(axes, keepdims=True)
    variance = x.var(axes, ddof=wrong.get("ddof", 0), keepdims=True) + (not center) * mean**2
    result = (x - mean * center) / (variance + EPSILON) ** wrong.get("power", 0.5)
    affine = wrong.get("affine")
    if affine == "swapped":
        return result * shift + scale
    return result * (1.0 if affine == "none" else scale) + shift * (affine is None)


def pooled(x: np.ndarray, counted: str = "", divisor: str = "") -> np.ndarray:
    """Mean over time of what the mask keeps."""
    weights = np.ones_like(KEEP) if counted == "all" else KEEP
    return (x * weights[..., None]).sum(1) / (TIME if divisor == "all" else weights.sum(1)[:, None])


def sublayer(x: Any, *_: Any) -> Any:
    """A layer that does not commute with `norm`."""
    return x + 0.3 * x * x


def norm(x: Any, *_: Any) -> Any:
    """A norm of any library."""
    return x / (1 + (x * x).sum(-1)[..., None])


RESIDUALS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "norm after the sum": lambda x: norm(x + sublayer(x)),
    "norm before the layer": lambda x: x + sublayer(norm(x)),
    "norms around the layer": lambda x: x + norm(sublayer(norm(x))),
    "norm of the branch": lambda x: x + norm(sublayer(x)),
    "norm of both": lambda x: norm(x) + sublayer(norm(x)),
    "norm of x": lambda x: norm(x) + sublayer(x),
    "no residual": lambda x: norm(sublayer(x)),
    "no residual, norm first": lambda x: sublayer(norm(x)),
    "layer only": lambda x: sublayer(x),
}


def residual(x: np.ndarray, form: str) -> np.ndarray:
    """A layer with norms and the residual, in one of the forms; three of these are right."""
    return RESIDUALS[form](x)


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
    part = part or _part_of(fn)
    if part not in ROLES:
        raise UserError(f"part={part!r}: one of {', '.join(ROLES)}")
    first, *others = ROLES[part]
    subject = Subject("check_model", fn, [*others[:1], first, *others[1:]], seconds)
    if part == "model":
        drawn = np.array([token for token in range(vocab_size) if token != pad])
        return _check_whole(subject, drawn, causal, pad, cached)
    if part == "dropout":
        return _check_dropout(subject, fn)
    rng = np.random.default_rng(0)
    x = rng.normal(1.0, 2.0, (BATCH, TIME, width))
    scale, shift = rng.normal(size=(2, width))
    values = {"x": x, "mask": KEEP, "sublayer": sublayer, "norm": norm}
    values |= {"scale": scale, "shift": shift, "norm_eps": EPSILON}
    readings: dict[str, dict[str, Any]] = {part: {}}
    if part == "pool":
        reference = partial(pooled, x)
    elif part == "residual":
        reference = partial(residual, x)
        readings = {form: {"form": form} for form in list(RESIDUALS)[:3]}
    else:
        factor = scale if subject.has("scale") else 1.0
        offset = shift if subject.has("shift") else 0.0
        reference = partial(normed, x, factor, offset, center="rms" not in subject.name.lower())
    return diagnose(subject, part, subject.trials([Trial("", values, reference)], readings))


def _part_of(fn: Callable[..., Any]) -> str:
    """The part that a function's name or parameters tell."""
    name = getattr(fn, "__name__", type(fn).__name__).lower()
    roles = dict.fromkeys(["x", *(roles[0] for roles in ROLES.values())])
    roles |= dict.fromkeys(role for roles in ROLES.values() for role in roles)
    by_name = Subject("check_model", fn, [*roles]).by_name
    for part in ROLES:
        if ROLES[part][0] in by_name:
            return part
    for part in ROLES:
        if part in name.replace("model", ""):
            return part
    raise UserError(f"{name}: what is it? Say part=, one of {', '.join(ROLES)}")


def _check_dropout(subject: Subject, fn: Any) -> Answer:
    """Checks the share that is dropped, the scale of what is kept, and evaluation."""
    is_module = hasattr(fn, "train") and hasattr(fn, "eval")  # of PyTorch
    rate = getattr(fn, "p", 0.2)
    x = np.ones((200, 50))
    values = {"x": x, "rate": rate, "rng": np.random.default_rng(0)}
    if is_module:
        fn.train(True)
    output = subject.output(**values, train=True, deterministic=False)
    if is_module:
        fn.train(False)
    evaluated = subject.output(**values, train=False, deterministic=True)
    dropped = (output == 0).mean()
    factor = output.max()
    changed = difference(evaluated, x)
    has_switch = subject.has("train") or subject.has("deterministic") or is_module
    signs = {
        "dropout_at_evaluation": has_switch and changed > TOLERANCE,
        "dropout_missing": dropped == 0,
        "dropout_inverted": abs(dropped - (1 - rate)) < 0.05 < abs(dropped - rate),
        "dropout_unscaled": abs(dropped - rate) < 0.05 and abs(factor - 1) < 1e-3 < rate,
    }
    evidence = f"{dropped:.1%} are 0 at the rate {rate}, others are multiplied by {factor:.4g}; "
    evidence += f"evaluation changes x by {changed:.2g}"
    findings = [Finding(name, evidence) for name, shows in signs.items() if shows]
    right = abs(dropped - rate) < 0.05 and abs(factor * (1 - rate) - 1) < 1e-3 and not findings
    return Answer("check_model", right, "dropout", findings, evidence)


def _check_whole(
    subject: Subject,
    drawn: np.ndarray,
    causal: bool,
    pad: int | None,
    cached: Callable[..., Any] | None,
) -> Answer:
    """Changes inputs, drawn from these tokens, and looks at which outputs change."""
    indices = np.random.default_rng(0).integers(0, len(drawn), (BATCH, TIME))
    indices[:, 1] = (indices[:, 0] + 1) % len(drawn)  # two that differ, to swap
    tokens = drawn[indices]
    others = drawn[(indices + 1) % len(drawn)]

    def logits(ids: np.ndarray, of: Subject = subject) -> np.ndarray:
        result = of.output(tokens=ids)
        if result.ndim != 3 or result.shape[:2] != ids.shape:
            raise UserError(f"{of.name} has to return logits [batch, time, vocabulary]")
        return result

    output = logits(tokens)
    layout = "[batch, time, vocabulary]" + ", causal" * causal
    change = difference(logits(tokens), output)
    if change > TOLERANCE:
        findings = [Finding("dropout_at_evaluation", f"a second call differs by {change:.2g}")]
        return Answer("check_model", False, layout, findings)
    changed = logits(np.concatenate([tokens[:1], others[1:]]))
    changes = [("rows_mix", "other rows change row 0", difference(changed[0], output[0]))]
    for place in range(1, TIME if causal else 1):
        changed = logits(np.concatenate([tokens[:, :place], others[:, place:]], 1))
        change = difference(changed[:, :place], output[:, :place])
        changes.append(("future_leaks", f"tokens from {place} on change logits before", change))
    if pad is not None:
        longer = np.concatenate([tokens, np.full((BATCH, 2), pad)], 1)
        change = difference(logits(longer)[:, :TIME], output)
        changes.append(("padding_leaks", "two padding tokens change logits before", change))
    if cached is not None:
        change = difference(logits(tokens, Subject("check_model", cached, ["tokens"])), output)
        changes.append(("cache_differs", "logits with and without the cache differ", change))
    largest = {name: (words, change) for name, words, change in sorted(changes, key=lambda c: c[2])}
    findings = [
        Finding(name, f"{words} by {change:.2g}")
        for name, (words, change) in largest.items()
        if change > TOLERANCE
    ]
    swapped = logits(tokens[:, [1, 0, *range(2, TIME)]])
    moved = difference(swapped[:, 2:], output[:, 2:])
    if moved <= TOLERANCE:
        evidence = f"swapping the first two tokens changes later logits by {moved:.1e}"
        findings.append(Finding("positions_missing", evidence))
    if output.min() >= 0 and np.abs(output.sum(-1) - 1).max() < 1e-3:
        findings.append(Finding("returns_probabilities", "all outputs are positive and sum to 1"))
    evidence = "what may not change its logits does not"
    return Answer("check_model", not findings, layout, findings, evidence)

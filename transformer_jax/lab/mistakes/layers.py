# SPDX-License-Identifier: Apache-2.0
"""Checks layers and whole models: norm, residual, dropout, and what a model may depend on."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes import engine
from transformer_jax.lab.mistakes.engine import SECONDS, Answer, Subject, Trial, difference

BATCH, TIME = 3, 7
KEEP = (np.arange(TIME) < np.array([[7], [4], [2]])).astype(np.float64)
EPSILON = 1e-5
ROLES: Mapping[str, Sequence[str]] = {
    "residual": ["x", "sublayer", "norm"],
    "dropout": ["x", "rate", "train", "deterministic", "rng"],
    "norm": ["x", "scale", "shift", "norm_eps"],
    "pool": ["x", "mask"],
    "model": ["tokens"],
}
"""Part -> roles of its parameters, of which the second tells the part."""


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
"""A layer with norms and the residual; the first three forms are right."""


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
    name = getattr(fn, "__name__", type(fn).__name__).lower()
    roles = dict.fromkeys(role for roles in ROLES.values() for role in roles)
    if part is None:
        by_name = Subject("check_model", fn, [*roles]).by_name
        parts = [kind for kind in ROLES if {*ROLES[kind][:2]} <= by_name]
        parts += [kind for kind in ROLES if kind in name and kind != "model"]
        part = [*parts, ""][0]
    if part not in ROLES:
        raise UserError(f"{name}: what is it? Say part=, one of {', '.join(ROLES)}")
    subject = Subject("check_model", fn, ROLES[part], seconds)
    rng = np.random.default_rng(0)
    if part == "model":
        vocabulary = np.array([token for token in range(vocab_size) if token != pad])
        tokens, others = rng.choice(vocabulary, (2, BATCH, TIME))
        calls = [("dropout_at_evaluation", "a second call differs", tokens, TIME, subject)]
        calls.append(("batch_leaks", "a row alone has other logits", tokens[:1], TIME, subject))
        for place in range(1, TIME if causal else 1):
            changed = np.concatenate([tokens[:, :place], others[:, place:]], 1)
            words = f"tokens from {place} on change logits before"
            calls.append(("future_leaks", words, changed, place, subject))
        if pad is not None:
            longer = np.concatenate([tokens, np.full((BATCH, 2), pad)], 1)
            calls.append(("padding_leaks", "padding changes logits before", longer, TIME, subject))
        if cached is not None:
            decoder = Subject("check_model", cached, ["tokens"])
            calls.append(("cache_differs", "logits with the cache differ", tokens, TIME, decoder))
        return _check_whole(subject, calls, "[batch, time, vocabulary]" + ", causal" * causal)
    if part == "dropout":
        return _check_dropout(subject, fn)
    x = rng.normal(1.0, 2.0, (BATCH, TIME, width))
    scale, shift = rng.normal(size=(2, width))
    values = {"x": x, "mask": KEEP, "sublayer": sublayer, "norm": norm}
    values |= {"scale": scale, "shift": shift, "norm_eps": EPSILON}
    gamma = scale if subject.has("scale") else 1.0
    beta = shift if subject.has("shift") else 0.0
    readings: dict[str, Any] = {part: {}}
    reference: Callable[..., np.ndarray] = partial(normed, x, gamma, beta, "rms" not in name)
    if part == "residual":
        readings = {form: {"form": form} for form in list(RESIDUALS)[:3]}
        reference = lambda form: RESIDUALS[form](x)  # noqa: E731
    elif part == "pool":
        reference = partial(pooled, x)
    trials = subject.trials([Trial("", values, reference)], readings)
    return engine.diagnose(subject, part, trials)


def _check_dropout(subject: Subject, fn: Any) -> Answer:
    """Checks the share that is dropped, the scale of what is kept, and evaluation."""
    is_module = hasattr(fn, "train") and hasattr(fn, "eval")  # of PyTorch
    rate = getattr(fn, "p", 0.2)
    x = np.ones((200, 50))
    values = {"x": x, "rate": rate, "rng": np.random.default_rng(0)}
    outputs = []
    for train in (True, False):
        if is_module:
            fn.train(train)
        outputs.append(subject.array(**values, train=train, deterministic=not train))
    dropped = (outputs[0] == 0).mean()
    factor = outputs[0].max()
    changed = difference(outputs[1], x)
    has_switch = subject.has("train", "deterministic") or is_module
    is_rate = abs(dropped - rate) < 0.05
    signs = {
        "dropout_at_evaluation": has_switch and changed > subject.tolerance(x.size),
        "dropout_missing": dropped == 0,
        "dropout_inverted": abs(dropped - (1 - rate)) < 0.05 and not is_rate,
        "dropout_unscaled": is_rate and abs(factor - 1) < 1e-3 < rate,
    }
    evidence = f"{dropped:.1%} are 0 at the rate {rate}, others are multiplied by {factor:.4g}; "
    evidence += f"evaluation changes x by {changed:.2g}"
    findings = [engine.Finding(name, evidence) for name, shows in signs.items() if shows]
    right = is_rate and abs(factor * (1 - rate) - 1) < 1e-3 and not findings
    return Answer("check_model", "dropout", findings, right, evidence)


def _check_whole(subject: Subject, calls: Sequence[Any], layout: str) -> Answer:
    """Compares logits of the first call with those of others, up to a position."""
    tokens = calls[0][2]
    output = subject.array(tokens=tokens)
    if output.ndim != 3 or output.shape[:2] != tokens.shape:
        raise UserError(f"{subject.name} has to return logits [batch, time, vocabulary]")
    for name, words, ids, end, model in calls:
        change = difference(model.array(tokens=ids)[:, :end], output[: len(ids), :end])
        if change > model.tolerance(output.size):
            return engine.judged("check_model", layout, name, f"{words} by {change:.2g}")
    if output.min() >= 0 and np.abs(output.sum(-1) - 1).max() < 1e-3:
        evidence = "all outputs are positive and sum to 1"
        return engine.judged("check_model", layout, "returns_probabilities", evidence)
    return Answer("check_model", layout, right=True, evidence="no logits change that may not")

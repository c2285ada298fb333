# SPDX-License-Identifier: Apache-2.0
"""Checks losses: cross-entropy of logits and labels, with masks and smoothing."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes import engine
from transformer_jax.lab.mistakes.engine import SECONDS, Answer, Subject, Trial

BATCH, TIME, VOCABULARY = 3, 6, 8
LENGTHS = np.array([6, 3, 2])
SMOOTHING = 0.2
REDUCTIONS = ("mean", "sum", "sum / batch", "rows", "row sums", "none")


def cross_entropy(logits: np.ndarray, labels: np.ndarray, keep: Any, **options: Any) -> np.ndarray:
    """Cross-entropy of logits [B, T, V] and labels [B, T], by default right and a mean.

    Options are those of table.toml. `softmaxes` is how many are applied, 0 for none and -1 for one
    without a logarithm.
    """
    shift = options.get("shift", 0)
    following = slice(max(shift, 0), TIME - max(-shift, 0))
    logs = logits[:, max(-shift, 0) : TIME - max(shift, 0)]
    softmaxes = options.get("softmaxes", 1)
    for _ in range(abs(softmaxes)):
        logs = softmax(logs, -1)
    logs = np.log(logs) if softmaxes > 0 else logs
    rate = options.get("smoothing", 0.0)
    right, others = {  # targets of the label, and of each token
        "all": (1 - rate, rate / VOCABULARY),
        "others": (1 - rate * VOCABULARY / (VOCABULARY - 1), rate / (VOCABULARY - 1)),
        "added": (1, rate / VOCABULARY),
        "eps": (1 - rate, rate),
        "one": (1 - rate / (VOCABULARY - 1), rate / (VOCABULARY - 1)),
        "both": (1 - rate, rate / (VOCABULARY - 1)),
        "target": (1 - rate, 0),
        "none": (1, 0),
    }[options.get("smooth", "all")]
    following_labels = labels[:, following] % VOCABULARY  # padding may be -100
    targets = right * np.eye(VOCABULARY)[following_labels] + others
    losses = -options.get("sign", 1.0) * (targets * logs).sum(-1)
    if options.get("divergence"):
        losses = losses + (targets * np.log(targets + 1e-30)).sum(-1)
    weights = keep[:, following] | (options.get("counted") == "all")
    losses = losses * weights
    sums = losses.sum(-1)
    counts = weights.sum(-1)
    divisors = {"kept": counts.sum(), "all": weights.size, "vocabulary": counts.sum() * VOCABULARY}
    divisors["rows"] = sums.sum() / (sums / counts).mean()
    return {
        "mean": sums.sum() / divisors[options.get("divisor", "kept")],
        "sum": sums.sum(),
        "sum / batch": sums.mean(),
        "rows": sums / counts,
        "row sums": sums,
        "none": losses.reshape(-1) if options.get("flat") else losses,
    }[options.get("reduction", "mean")]


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
    subject = Subject("check_loss", fn, roles, seconds)
    as_tokens = Subject("check_loss", fn, ["logits", "tokens", *roles[2:]], seconds)
    if "labels" not in subject.by_name and "tokens" in as_tokens.by_name:
        subject = as_tokens
        shifted = bool(shifted)
    rng = np.random.default_rng(0)
    padding = pad or 0
    logits = 2 * rng.normal(size=(BATCH, TIME, VOCABULARY))
    labels = rng.choice([token for token in range(VOCABULARY) if token != padding], (BATCH, TIME))
    keep = np.ones((BATCH, TIME), bool)
    if subject.has("mask") or subject.has("pad") or pad is not None:
        keep = np.arange(TIME) < LENGTHS[:, None]
        labels = np.where(keep, labels, padding)
    rate = smoothing or SMOOTHING * subject.has("smoothing")
    shifts = {None: (0, 1), True: (0,), False: (1,)}[shifted]
    forms = {", eps / V each": "all", ", eps / (V - 1)": "others"} if rate else {"": "all"}
    signs = {"": False, ", less the entropy": True} if rate else {"": False}
    readings: dict[str, dict[str, Any]] = {}
    for shift, reduction, form, less in itertools.product(shifts, REDUCTIONS, forms, signs):
        words = f", {reduction}{form}{less}" + ", shifted inside" * (shift and shifted is None)
        readings[words] = {"shift": shift, "reduction": reduction, "smoothing": rate}
        readings[words] |= {"smooth": forms[form], "divergence": signs[less]}
    kinds = {"logits": logits}
    if "logits" not in subject.roles:  # a name such as `outputs` does not tell
        kinds["log-probabilities"] = log_softmax(logits, -1)
        kinds["probabilities"] = softmax(logits, -1)
    one_hot = np.eye(VOCABULARY)[labels % VOCABULARY]
    orders = {
        "[batch, time, vocabulary]": labels,
        "[batch * time, vocabulary]": labels.reshape(-1),
        "[batch, vocabulary, time]": labels,
        "[batch, time, vocabulary], one-hot labels": one_hot,
    }
    for order, targets in orders.items():
        flat = targets.ndim == 1
        arguments: dict[str, Any] = {"labels": targets, "tokens": targets, "pad": padding}
        arguments |= {"mask": keep.reshape(-1) if flat else keep, "smoothing": rate}
        reference = partial(cross_entropy, logits, labels, keep, flat=flat)
        layouts = []
        for kind, values in kinds.items():
            values = values.swapaxes(1, 2) if "vocabulary, time" in order else values
            values = values.reshape(-1, VOCABULARY) if flat else values
            layouts.append(Trial(f"{kind} {order}", arguments | {"logits": values}, reference))
        trials = subject.trials(layouts, readings)
        if trials:  # of others a mean of rows could be right, as they have one row
            break
    answer = engine.diagnose(subject, "loss", trials)
    if answer.right and shifted is None and "shifted inside" in answer.layout:
        raise UserError(
            f"{subject.name} shifts labels by one. Say shifted=False if the labels it is "
            "given equal the inputs, shifted=True if they are shifted already"
        )
    return answer

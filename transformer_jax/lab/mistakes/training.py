# SPDX-License-Identifier: Apache-2.0
"""Checks training: losses, schedules, inputs and targets of a batch, averages, accumulated
gradients."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.special import log_softmax, softmax

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes import engine
from transformer_jax.lab.mistakes.engine import SECONDS, Answer, RejectedError, Subject, Trial

LR = 0.1
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


def rates(steps: np.ndarray, kind: str, numbers: Mapping[str, Any], **wrong: Any) -> np.ndarray:
    """Learning rates at steps: those of the paper ("paper"), or a linear warm-up to a peak, then
    "inverse root", "cosine", "linear" or "constant"; `wrong` are options of table.toml."""
    warmup = numbers["warmup"] + wrong.get("meet", 0)
    begin = 0 if "from_0" in wrong else warmup
    share = np.clip((steps - begin) / ((numbers["total"] or len(steps)) - begin), 0, 1)
    late = steps + wrong.get("late", 0)
    if kind == "paper":
        scale = numbers["d_model"] ** wrong.get("width", -0.5)
        rising = late * warmup ** wrong.get("power", -1.5)
        falling = steps ** wrong.get("decay", -0.5)
        is_rising = rising < falling
    else:
        scale = numbers["peak"]
        rising = late / (warmup + wrong.get("over", 0))
        falling = {
            "inverse root": np.sqrt(warmup / steps),
            "cosine": 0.5 * (1 + np.cos(np.pi * share)),
            "linear": 1 - share,
            "constant": np.ones_like(steps),
        }[kind]
        is_rising = steps < warmup + wrong.get("until", 0)
    picks = {"right": is_rising, "max": ~is_rising, "decay": False, "warmup": True}
    return scale * np.where(picks[wrong.get("pick", "right")], rising, falling)


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
    subject = Subject("check_schedule", fn, roles, seconds)
    numbers: dict[str, Any] = {"warmup": warmup, "d_model": d_model, "peak": peak, "total": total}
    for name, default in {"warmup": 8, "d_model": 64, "peak": 0.5, "total": 40}.items():
        numbers[name] = numbers[name] or (default if subject.has(name) else None)
    if not numbers["warmup"] or not (numbers["d_model"] or numbers["peak"]):
        raise UserError(
            f"{subject.name}: say warmup= and d_model= (the paper's schedule), or warmup=, peak= "
            "and total="
        )
    steps = np.arange(1.0, 1 + int(numbers["total"] or 5 * numbers["warmup"]))
    output = np.full(len(steps) + 1, np.nan)
    evidence = ""
    for step in range(len(output)):
        try:
            rate = subject.array(step=step, **numbers, factor=1.0)
        except RejectedError as error:
            # PyTorch's LambdaLR begins with step 0, whatever the step.
            if step > 0 and "ZeroDivisionError" not in error.reason:
                raise
            evidence = evidence or f"at step 0 {error.reason}"
            continue
        if rate.size != 1:
            raise subject.rejected(f"it returns the shape {list(rate.shape)}, no number")
        output[step] = rate.item()
    if not np.isfinite(output[0]):
        evidence = evidence or f"the rate at step 0 is {output[0]}"
    output = output[1:]
    step_0 = engine.judged("check_schedule", "steps from 0", "step_0", evidence)
    if np.isnan(output).all():
        return step_0
    kinds = ["paper"] * bool(numbers["d_model"])
    if numbers["peak"]:
        kinds += ["inverse root", "constant"] + ["cosine", "linear"] * bool(numbers["total"])
    forms: dict[str, dict[str, Any]] = {
        "steps from 1": {"steps": steps},
        "steps from 0": {"steps": steps + 1},
        "warm-up (step + 1) / warmup": {"steps": steps, "late": 1},
        "warm-up (step + 1) / (warmup + 1)": {"steps": steps, "late": 1, "over": 1},
    }
    trials = []
    for words, kind in itertools.product(forms, kinds):
        if kind != "paper" or "late" not in forms[words]:
            reference = partial(rates, kind=kind, numbers=numbers, **forms[words])
            trials.append(Trial(f"{kind}, {words}", numbers, reference, output))
    answer = engine.diagnose(subject, "schedule", trials)
    return answer if first_step == 1 or answer.mistakes or not evidence else step_0


def inputs_and_targets(tokens: np.ndarray, bos: bool, **options: Any) -> np.ndarray:
    """Inputs and targets [2, ..., T] of tokens, with the start token (1) and `end` token (2)."""
    column = np.ones_like(tokens[..., :1])
    starts = [column] * (bos and options.get("start", True))
    whole = np.concatenate([*starts, tokens, *[2 * column] * options.get("end", False)], -1)
    shift = options.get("shift", 1)
    inputs = whole[..., max(-shift, 0) : whole.shape[-1] - max(shift, 0)]
    targets = whole[..., max(shift, 0) : whole.shape[-1] - max(-shift, 0)]
    pairs = {"inputs": (inputs, inputs), "targets": (targets, targets)}
    return np.stack(pairs.get(options.get("same", ""), (inputs, targets)))


def averaged(losses: np.ndarray, counts: np.ndarray, weights: str = "counts") -> np.ndarray:
    """Mean of losses that are means of batches of these counts."""
    total = (losses * counts).sum()
    means = {"counts": total / counts.sum(), "batches": total / len(losses)}
    return (means | {"sum": total, "none": losses.mean()})[weights]


def updated(params: np.ndarray, targets: Sequence[np.ndarray], **options: Any) -> np.ndarray:
    """Parameters after a step, or its `gradient`; that of a micro-batch is params - target."""
    gradients = [params - target for target in targets]
    total = np.sum(gradients, 0)
    means = {"once": total / len(targets), "no": total, "twice": total / len(targets) ** 2}
    means |= {"last": gradients[-1], "first": gradients[0]}
    mean = means[options.get("divide", "once")]
    return mean if options.get("gradient") else params - options.get("sign", 1.0) * LR * mean


def check_training(fn: Callable[..., Any], *, seconds: float = SECONDS) -> Answer:
    """Finds the mistake in a part of a training step.

    `fn(tokens)` or `fn(tokens, bos)` makes inputs and targets; `fn(losses, counts)` averages means
    of batches; `fn(gradients)` averages gradients of equal micro-batches, and
    `fn(params, batches, grad_fn, lr)` updates with them: `grad_fn(params, batch)`, or `loss_fn`, is
    given.
    """
    rng = np.random.default_rng(0)
    params, *targets = rng.normal(size=(4, 4))
    losses = rng.uniform(1, 3, 4)
    counts = np.array([10.0, 1.0, 3.0, 2.0])
    tokens = rng.permutation(np.arange(3, 15)).reshape(2, 6)
    update: dict[str, Any] = {"params": params, "batches": targets}
    update["grad"] = lambda params, batch: params - batch
    update["loss_fn"] = lambda params, batch: ((params - batch) ** 2).sum() / 2
    update["lr"] = LR
    gradients = {"gradients": [params - target for target in targets]}
    means = {"losses": losses, "counts": counts}
    batch = {"tokens": tokens, "bos": 1, "eos": 2}
    roles = [*update, *gradients, "losses", *batch, "counts"]
    by_name = Subject("check_training", fn, roles).by_name
    if "gradients" in by_name or {"params", "batches"} <= by_name:
        values = gradients if "gradients" in by_name else update
        subject = Subject("check_training", fn, [*values], seconds)
        readings: dict[str, Any] = {"params": {}} if values is update else {}
        readings["gradient"] = {"gradient": True}
        layout = Trial("returns the ", values, partial(updated, params, targets))
        return engine.diagnose(subject, "accumulation", subject.trials([layout], readings))
    if "losses" in by_name:
        subject = Subject("check_training", fn, [*means], seconds)
        layout = Trial("mean of all tokens", means, partial(averaged, losses, counts))
        return engine.diagnose(subject, "average", subject.trials([layout]))
    subject = Subject("check_training", fn, [*batch], seconds)
    trials = []
    for ids in (tokens, tokens[0]):  # rows, or one
        try:
            output = np.array(subject(**batch | {"tokens": ids}), np.float64)
        except (RejectedError, TypeError, ValueError):
            continue
        for end in [True, False] if subject.has("eos") else [False]:
            if output.ndim == ids.ndim + 1 and len(output) == 2:
                name = "targets are the next tokens" + ", then the end" * end
                reference = partial(inputs_and_targets, ids, subject.has("bos"), end=end)
                trials.append(Trial(name, batch, reference, output))
    if not trials and not subject.rejection:
        raise UserError(f"{subject.name} has to give (inputs, targets) of one shape")
    return engine.diagnose(subject, "batch", trials)

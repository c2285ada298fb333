# SPDX-License-Identifier: Apache-2.0
"""Checks what a model reads: masks, positions, embeddings."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes.answer import Answer, Finding, diagnose, judged
from transformer_jax.lab.mistakes.attention import require_meaning
from transformer_jax.lab.mistakes.calls import SECONDS, RejectedError, Subject, Trial, laid_out

BATCH, HEADS, TIME = 3, 2, 7
LENGTHS = np.array([7, 4, 2])
_OF_PADDING = (np.arange(TIME) >= LENGTHS[:, None])[:, :, None]
"""Queries of padding, [B, T, 1]: what they see does not matter."""


def mask_of(
    meaning: str, causal: bool, padding: bool, ignored: Any = False, **wrong: Any
) -> np.ndarray:
    """A mask [B, T, T] that means "keep", "hide" or "added"; `wrong` are options of table.toml.

    Queries that are `ignored` see all.
    """
    triangle = np.tri(TIME, TIME, wrong.get("diagonal", 0), bool) | (not causal)
    triangle = triangle.T if "transposed" in wrong else triangle
    real = (np.arange(TIME) < (LENGTHS + wrong.get("shift", 0))[:, None]) | (not padding)
    real = real[:, :, None] if "queries" in wrong else real[:, None]
    keep = (triangle | real) if "union" in wrong and causal and padding else (triangle & real)
    keep = ~keep if "inverted" in wrong else keep
    keep = keep | ignored
    if meaning == "added":
        return np.where(keep, 0.0, wrong.get("hidden", -1e9))
    return (keep if meaning == "keep" else ~keep).astype(np.float64)


def check_mask(
    fn: Callable[..., Any], *, mask: str | None = None, pad: int = 0, seconds: float = SECONDS
) -> Answer:
    """Finds the mistake in a function that makes a mask.

    `fn(length)` makes a causal one; `fn(tokens, pad)` or `fn(lengths, max_length)` one of padding,
    causal too if the last two axes say so.

    Args:
      mask: "keep" if True or 1 means that a key is seen, "hide" if it is hidden; asked for if the
        result could be either. Added masks (0 and -inf) need no word.
      pad: the padding token of functions that have it inside.
    """
    require_meaning(mask)
    subject = Subject("check_mask", fn, ["tokens", "lengths", "length", "pad"], seconds)
    tokens = np.where(np.arange(TIME) < LENGTHS[:, None], pad + 1, pad)
    values = {"tokens": tokens, "lengths": LENGTHS, "length": TIME, "pad": pad}
    padding = subject.has("tokens") or subject.has("lengths")
    array = subject.array(**values)
    square = array.shape[-2:] == (TIME, TIME)
    array = array[:, None] if array.shape == (BATCH, TIME) else array
    array = array[:, 0] if array.ndim == 4 else array
    try:
        whole = np.broadcast_to(array, (BATCH, TIME, TIME))
    except ValueError:
        shape = list(array.shape)
        raise UserError(f"{subject.name} returns the shape {shape}, which is no mask's") from None
    num_hidden = int(np.isneginf(whole).all(-1).sum())
    whole = np.nan_to_num(whole, neginf=-1e9, posinf=1e9)
    whole = np.where(np.abs(whole) > 1e4, np.sign(whole) * 1e9, whole)
    meanings = [mask] if mask else ["keep", "hide"]
    if whole.min() < 0 or whole.max() > 1:
        meanings = ["added"]
    answers = []
    for meaning in meanings:
        trials = []
        for causal in [True, False] if square and padding else [not padding]:
            name = " and ".join(["causal"] * causal + ["padding"] * padding) + f", {meaning}"
            hidden = {"added": -1e9, "keep": 0, "hide": 1}[meaning]
            ignored = _OF_PADDING & ((whole == hidden).all(-1, keepdims=True) | causal) & padding
            output = np.where(ignored, mask_of(meaning, False, False), whole)
            reference = partial(mask_of, meaning, causal, padding, ignored)
            trials.append(Trial(name, values, reference, {}, output))
        answers.append(diagnose(subject, "mask", trials))
    shows, hides = answers[0], answers[-1]
    could_hide = hides.right or 0 < len(hides.mistakes) <= (len(shows.mistakes) or 2)
    if len(answers) > 1 and not shows.right and could_hide:
        raise UserError(
            f"{subject.name}: does True or 1 in its mask mean that a key is seen? "
            'Say mask="keep" if yes, mask="hide" if it means that the key is hidden'
        )
    if shows.right and num_hidden:
        evidence = f"{num_hidden} of {BATCH * TIME} rows are all -inf: their softmax is NaN"
        return replace(shows, right=False, mistakes=[Finding("nan_rows", evidence)])
    return shows


def sinusoids(length: int, width: int, **wrong: Any) -> np.ndarray:
    """Sines and cosines of positions, [length, width]: section 3.5 of the paper by default."""
    form = wrong.get("form")
    columns = np.arange(width)
    pairs = columns if form == "each" else columns - columns % 2
    shares = wrong.get("exponent", 1.0) * pairs / (width - 2 if form == "fairseq" else width)
    positions = np.arange(length)[:, None] + wrong.get("start", 0)
    angles = positions * wrong.get("base", 1e4) ** -shares
    is_cosine = (columns % 2 == 1) != (form == "swapped")
    waves = np.where(is_cosine, np.cos(angles), np.sin(angles))
    if form in ("blocks", "fairseq"):
        return np.concatenate([waves[:, ::2], waves[:, 1::2]], 1)
    return waves


def with_positions(x: np.ndarray, **options: Any) -> np.ndarray:
    """Embeddings [B, T, F], scaled by a `power` of F, plus positions along time."""
    batch, time, width = x.shape
    axis = options.get("axis", "time")
    length: int = {"time": time, "batch": batch, "none": 1}[axis]
    table = sinusoids(length, width, **options) * options.get("positions", True)
    x = x * options.get("embeddings", True) * width ** options.get("power", 0.0)
    return x + (table[:, None] if axis == "batch" else table)


def rotated(x: np.ndarray, **options: Any) -> np.ndarray:
    """Rotary positions of [B, H, T, D] (Su et al. 2021), over halves or `neighbours`."""
    time, depth = x.shape[-2:]
    angles = np.arange(time)[:, None] * 1e4 ** (-np.arange(0, depth, 2) / depth)
    first, second = np.split(x, 2, -1)
    turned = np.concatenate([options.get("sign", -1.0) * second, first], -1)
    neighbours = options.get("neighbours", False)
    if neighbours:
        second = options.get("sign", -1.0) * x[..., 1::2]
        turned = np.stack([second, x[..., ::2]], -1).reshape(x.shape)
    in_halves = neighbours == options.get("mixed", False)
    angles = np.concatenate([angles, angles], -1) if in_halves else np.repeat(angles, 2, -1)
    return x * np.cos(angles) + turned * np.sin(angles)


def check_positions(
    fn: Callable[..., Any],
    *,
    width: int = 10,
    max_length: int = 600,
    batch_first: bool = False,
    seconds: float = SECONDS,
) -> Answer:
    """Finds the mistake in sinusoidal or rotary positions, or in a scaled embedding.

    `fn(length, d_model)` makes a table, `fn(x)` adds it to [batch, time, d_model] or rotates
    [batch, heads, time, depth], `fn(tokens, table)` embeds.

    Args:
      width: features that it takes.
      batch_first: refuses layouts whose first axis is time.
      max_length: the longest input that a table must serve.
    """
    rng = np.random.default_rng(0)
    subject = Subject("check_positions", fn, ["table", "tokens", "length", "d_model", "x"], seconds)
    if {"tokens", "table"} <= subject.by_name:
        table = rng.normal(size=(20, width))
        tokens = rng.integers(0, 20, (BATCH, TIME))
        reference = partial(with_positions, table[tokens], power=0.5, positions=False)
        layout = Trial("embeddings", {"tokens": tokens, "table": table}, reference)
        readings: dict[str, dict[str, Any]] = {"": {}, " with positions": {"positions": True}}
        return diagnose(subject, "embedding", subject.trials([layout], readings))
    subject = Subject("check_positions", fn, ["length", "d_model", "x"], seconds)
    sizes = {"length": TIME, "d_model": width}
    x = rng.normal(size=(BATCH, TIME, width))
    orders = ["btf"] if batch_first else ["btf", "tbf", "tf"]
    readings = {"": {}, ", scaled by sqrt(features)": {"power": 0.5}}
    if not subject.has("x"):
        x = np.zeros((1, TIME, width))
        readings = {"": {}}
    layouts = laid_out("btf", orders, sizes | {"x": x}, partial(with_positions, x))
    answers = [("positions", subject.trials(layouts, readings))]
    if subject.has("x"):
        x = rng.normal(size=(BATCH, HEADS, TIME, width))
        orders = ["bhtd", "bthd", "btd", "td"]
        layouts = laid_out("bhtd", orders, {"x": x}, partial(rotated, x))
        readings = {", rotary, halves": {}, ", rotary, neighbours": {"neighbours": True}}
        answers.append(("rotary", subject.trials(layouts, readings)))
    tried = [diagnose(subject, about, trials) for about, trials in answers if trials]
    if not tried:
        diagnose(subject, "positions", [])
    answer = min(tried, key=lambda answer: (not answer.right, not answer.mistakes))
    trial = answer.trial
    if not answer.right or trial is None:
        return answer
    arguments: dict[str, Any] = sizes | {"length": max_length}
    if subject.has("x"):
        x = trial.arguments["x"]
        arguments["x"] = np.take(x, np.zeros(max_length, int), x.shape.index(TIME))
    shape = tuple(max_length if size == TIME else size for size in trial.output.shape)
    try:
        array = subject.array(**arguments)
        reason = f"it returns the shape {list(array.shape)}"
        if array.shape == shape:  # all positions read the same features
            rows = np.moveaxis(array, shape.index(max_length), 0).reshape(max_length, -1)
            num_apart = len(np.unique(rows.round(6), axis=0))
            if num_apart == max_length:
                return answer
            reason = f"only {num_apart} differ"
    except RejectedError as error:
        reason = error.reason
    evidence = f"for {max_length} positions: {reason}"
    return judged("check_positions", answer.layout, {"table_short": (True, evidence)})

# SPDX-License-Identifier: Apache-2.0
"""Checks what a model reads: masks, positions, embeddings."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes.answer import Answer, Finding, diagnose
from transformer_jax.lab.mistakes.calls import SECONDS, RejectedError, Subject, Trial, laid_out

BATCH, HEADS, TIME = 3, 2, 7
LENGTHS = np.array([7, 4, 2])
_OF_PADDING = (np.arange(TIME) >= LENGTHS[:, None])[:, :, None]
"""Queries of padding, [B, T, 1]."""
MEANINGS = {None: ["True shows", "True hides"], "keep": ["True shows"], "hide": ["True hides"]}


def mask_of(meaning: str, causal: bool, padding: bool, **wrong: Any) -> np.ndarray:
    """A mask [B, T, T]; `wrong` are options of table.toml.

    With `causal` and `padding`, queries of padding see all: it does not matter what they see.
    """
    triangle = np.ones((TIME, TIME), bool)
    if causal:
        triangle = np.tri(TIME, TIME, wrong.get("diagonal", 0), bool)
        triangle = triangle.T if "transposed" in wrong else triangle
    real = (np.arange(TIME) < (LENGTHS + wrong.get("shift", 0))[:, None]) | (not padding)
    real = real[:, :, None] if "queries" in wrong else real[:, None]
    keep = (triangle | real) if "union" in wrong and causal and padding else (triangle & real)
    keep = ~keep if "inverted" in wrong else keep
    keep = keep | (causal and padding and _OF_PADDING)
    if meaning == "is added":
        return np.where(keep, 0.0, wrong.get("hidden", -1e9))
    return (keep if meaning == "True shows" else ~keep).astype(np.float64)


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
    if mask not in MEANINGS:
        raise UserError(f'mask={mask!r}: "keep" or "hide"')
    subject = Subject("check_mask", fn, ["tokens", "lengths", "length", "pad"], seconds)
    tokens = np.where(np.arange(TIME) < LENGTHS[:, None], pad + 1, pad)
    values = {"tokens": tokens, "lengths": LENGTHS, "length": TIME, "pad": pad}
    padding = subject.has("tokens") or subject.has("lengths")
    array = subject.output(**values)
    square = array.shape[-2:] == (TIME, TIME)
    array = array[:, None] if array.shape == (BATCH, TIME) else array
    array = array[:, 0] if array.ndim == 4 else array
    try:
        whole = np.broadcast_to(array, (BATCH, TIME, TIME))
    except ValueError:
        shape = list(array.shape)
        raise UserError(f"{subject.name} returns the shape {shape}, which is no mask's") from None
    whole = np.nan_to_num(whole, neginf=-1e9, posinf=1e9)
    whole = np.where(np.abs(whole) > 1e4, np.sign(whole) * 1e9, whole)
    is_added = whole.min() < 0 or whole.max() > 1
    answers = []
    for meaning in ["is added"] if is_added else MEANINGS[mask]:
        trials = []
        for causal in [True, False] if square and padding else [not padding]:
            name = " and ".join(["causal"] * causal + ["padding"] * padding) + f", {meaning}"
            reference = partial(mask_of, meaning, causal, padding)
            output = whole
            if causal and padding:
                seen = mask_of(meaning, False, False)
                output = np.where(_OF_PADDING, seen, whole)
            trials.append(Trial(name, values, reference, output=output))
        answers.append(diagnose(subject, "mask", trials))
    shows, hides = answers[0], answers[-1]
    num_mistakes = len(shows.mistakes) or len(hides.mistakes)
    could_hide = hides.right or 0 < len(hides.mistakes) <= num_mistakes
    if len(answers) > 1 and not shows.right and could_hide:
        raise UserError(
            f"{subject.name}: does True or 1 in its mask mean that a key is seen? "
            'Say mask="keep" if yes, mask="hide" if it means that the key is hidden'
        )
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
    depth = x.shape[-1]
    axis = options.get("axis", 2)
    positions = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(4)])
    shares = options.get("exponent", 1.0) * np.arange(0, depth, 2) / depth
    angles = positions * options.get("base", 1e4) ** -shares
    sign = options.get("sign", -1.0)
    first, second = np.split(x, 2, -1)
    turned = np.concatenate([sign * second, first], -1)
    neighbours = options.get("neighbours", False)
    if neighbours:
        turned = np.stack([sign * x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
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
    if _embeds(fn):
        subject = Subject("check_positions", fn, ["tokens", "table"], seconds)
        table = rng.normal(size=(20, width))
        tokens = rng.integers(0, 20, (BATCH, TIME))
        values: dict[str, Any] = {"tokens": tokens, "table": table}
        reference = partial(with_positions, table[tokens], power=0.5, positions=False)
        layout = Trial("embeddings", values, reference)
        readings: dict[str, dict[str, Any]] = {"": {}, " with positions": {"positions": True}}
        return diagnose(subject, "embedding", subject.trials([layout], readings))
    subject = Subject("check_positions", fn, ["length", "d_model", "x"], seconds)
    if subject.has("x"):
        x = rng.normal(size=(BATCH, TIME, width))
        heads = rng.normal(size=(BATCH, HEADS, TIME, width))
        orders = ["btf"] if batch_first else ["btf", "tbf", "tf"]
        layouts = laid_out("btf", orders, {"x": x}, partial(with_positions, x), {})
        readings = {"": {}, ", scaled by sqrt(features)": {"power": 0.5}}
        groups = {"positions": subject.trials(layouts, readings)}
        orders = ["bhtd", "bthd", "btd", "td"]
        layouts = laid_out("bhtd", orders, {"x": heads}, partial(rotated, heads), {})
        readings = {", rotary, halves": {}, ", rotary, neighbours": {"neighbours": True}}
        groups["rotary"] = subject.trials(layouts, readings)
    else:
        zeros = partial(with_positions, np.zeros((1, TIME, width)))
        values = {"length": TIME, "d_model": width}
        layouts = laid_out("btf", ["tf", "btf", "tbf"], {}, zeros, values)
        groups = {"positions": subject.trials(layouts)}
    tried = {about: trials for about, trials in groups.items() if trials} or groups
    answers = [diagnose(subject, about, trials) for about, trials in tried.items()]
    answer = min(answers, key=lambda answer: (not answer.right, not answer.mistakes))
    trial = answer.trial
    if not answer.right or trial is None:
        return answer
    arguments: dict[str, Any] = {"length": max_length, "d_model": width}
    if subject.has("x"):
        x = trial.arguments["x"]
        arguments["x"] = np.take(x, np.zeros(max_length, int), x.shape.index(TIME))
    shape = [max_length if size == TIME else size for size in trial.output.shape]
    try:
        array = subject.array(**arguments)
        reason = f"it returns the shape {list(array.shape)}"
        if list(array.shape) == shape:
            # All positions read the same features.
            rows = np.moveaxis(array, shape.index(max_length), 0).reshape(max_length, -1)
            num_apart = len(np.unique(rows.round(6), axis=0))
            if num_apart == max_length:
                return answer
            reason = f"only {num_apart} differ"
    except RejectedError as error:
        reason = str(error)
    findings = [Finding("table_short", f"for {max_length} positions {reason}")]
    return Answer(answer.check, False, answer.layout, findings)


def _embeds(fn: Callable[..., Any]) -> bool:
    """Returns True for a function of tokens and a table of embeddings."""
    try:
        return {"tokens", "table"} <= Subject("", fn, ["tokens", "table"]).by_name
    except UserError:
        return False

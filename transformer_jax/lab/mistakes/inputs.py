# SPDX-License-Identifier: Apache-2.0
"""Checks what a model reads: masks, positions, embeddings."""

from collections.abc import Callable
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes.answer import Answer, Trial, diagnose
from transformer_jax.lab.mistakes.answer import found as finding
from transformer_jax.lab.mistakes.calls import SECONDS, RejectedError, Subject

BATCH, TIME = 3, 7
PAD = 0
LENGTHS = np.array([7, 4, 2])


def causal_and_padding(
    causal: bool,
    padding: bool,
    *,
    inverted: bool = False,
    transposed: bool = False,
    diagonal: int = 0,
    queries: bool = False,
    shift: int = 0,
    union: bool = False,
    hidden: float = -1e9,
) -> np.ndarray:
    """What each query sees, [batch, time, time]; `hidden` only where a mask is added."""
    keep = np.tri(TIME, TIME, diagonal, bool) if causal else np.ones((TIME, TIME), bool)
    keep = keep.T if transposed else keep
    real = np.arange(TIME) < (LENGTHS + shift)[:, None]
    rows = np.broadcast_to(real[:, None], (BATCH, TIME, TIME))
    rows = rows.swapaxes(1, 2) if queries else rows
    if padding:
        keep = (keep | rows) if causal and union else (keep & rows)
    return np.broadcast_to(~keep if inverted else keep, (BATCH, TIME, TIME))


def check_mask(
    fn: Callable[..., Any], *, mask: str | None = None, pad: int = PAD, seconds: float = SECONDS
) -> Answer:
    """Finds the mistake in a function that makes a mask.

    `fn(length)` makes a causal one; `fn(tokens, pad)` or `fn(lengths, max_length)` one of padding,
    causal too if the last two axes say so.

    Args:
      mask: "keep" if True or 1 means that a key is seen, "hide" if it is hidden; asked for if the
        result could be either. Added masks (0 and -inf) need no word.
      pad: the padding token of functions that have it inside.
    """
    if mask not in (None, "keep", "hide"):
        raise UserError(f'mask={mask!r}: "keep" or "hide"')
    subject = Subject(fn, ["tokens", "lengths", "length", "pad"], seconds)
    tokens = np.where(np.arange(TIME) < LENGTHS[:, None], 5 + np.arange(TIME) % 3, pad)
    values = {"tokens": tokens, "lengths": LENGTHS, "length": TIME, "pad": pad}
    padding = subject.has("tokens") or subject.has("lengths")
    if padding and not subject.has("pad"):
        values.pop("pad")
    try:
        result = subject(**values)
    except RejectedError:
        raise subject.refusal() from None
    array = np.asarray(result[0] if isinstance(result, tuple) else result)
    square = array.ndim >= 2 and array.shape[-2:] == (TIME, TIME)
    shapes = {(TIME, TIME), (BATCH, TIME), (BATCH, TIME, TIME), (1, TIME, TIME)}
    squeezed = tuple(n for n in array.shape if n != 1)
    if squeezed not in shapes:
        raise UserError(f"{subject.name} returns the shape {list(array.shape)}, which is no mask's")
    column = padding and not square and array.ndim >= 3 and array.shape[-1] == 1
    array = array.reshape(squeezed)
    is_added = array.dtype.kind == "f" and (array.min() < 0 or array.max() > 1.5)
    array = np.nan_to_num(array.astype(np.float64), neginf=-1e9, posinf=1e9)
    array = np.where(array < -1e4, -1e9, np.where(array > 1e4, 1e9, array))
    if not square:
        array = np.repeat(array[:, None], TIME, 1)
        array = array.swapaxes(1, 2) if column else array
    array = np.broadcast_to(array, (BATCH, TIME, TIME))

    def reference(meaning: str, causal: bool, **options: Any) -> np.ndarray:
        hidden = options.get("hidden", -1e9)
        keep = causal_and_padding(causal, padding, **options)
        if meaning == "added":
            return np.where(keep, 0.0, hidden)
        return (keep if meaning == "keep" else ~keep).astype(np.float64)

    meanings = ["added"] if is_added else [mask] if mask else ["keep", "hide"]
    words = {"added": "is added", "keep": "True shows", "hide": "True hides"}
    kinds = [True, False] if square and padding else [not padding]
    trials: list[Trial] = []
    for meaning in meanings:
        for causal in kinds:
            name = " and ".join(["causal"] * causal + ["padding"] * padding)
            options = {"meaning": meaning, "causal": causal}
            trials.append((f"{name}, {words[str(meaning)]}", array, reference, options))
    readings = {}
    for meaning in meanings:
        of_meaning = [trial for trial in trials if trial[3]["meaning"] == meaning]
        readings[meaning] = diagnose("check_mask", "mask", of_meaning)
    keep, *others = readings.values()
    if keep.right or not others:
        return keep
    hide = others[0]
    if not hide.right and _num_mistakes(keep) < _num_mistakes(hide):
        return keep
    raise UserError(
        f"{subject.name}: does True or 1 in its mask mean that a key is seen? "
        'Say mask="keep" if yes, mask="hide" if it means that the key is hidden'
    )


def _num_mistakes(answer: Answer) -> int:
    return len(answer.mistakes) or (0 if answer.right else 9)


def sinusoids(
    length: int,
    width: int,
    *,
    start: int = 0,
    form: str = "interleaved",
    exponent: float = 1.0,
    base: float = 1e4,
) -> np.ndarray:
    """Sines and cosines of positions, [length, width]: section 3.5 of the paper by default."""
    half = (width + 1) // 2
    column = np.arange(half)
    share = 2 * column / width
    if form == "fairseq":
        share = column / max(half - 1, 1)
    if form == "each":  # the exponent is that of the column, not of the pair
        angles = np.arange(start, start + length)[:, None] * base ** (-np.arange(width) / width)
        return np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles))
    angles = np.arange(start, start + length)[:, None] * base ** (-share * exponent)
    waves = [np.sin(angles), np.cos(angles)]
    if form == "swapped":
        waves.reverse()
    if form in ("blocks", "fairseq"):
        return np.concatenate(waves, -1)[:, :width]
    return np.stack(waves, -1).reshape(length, -1)[:, :width]


def rotated(
    x: np.ndarray,
    *,
    halves: bool = True,
    mixed: bool = False,
    sign: str = "one",
    exponent: float = 1.0,
    base: float = 1e4,
    axis: str = "time",
    start: int = 0,
) -> np.ndarray:
    """Rotary positions of [B, H, T, D] (Su et al. 2021), over halves or neighbours."""
    time, depth = x.shape[-2:]
    angles = np.arange(start, start + time)[:, None] * base ** (
        -2 * np.arange(depth // 2) / depth * exponent
    )
    if axis == "other":
        angles = np.arange(x.shape[1])[:, None, None] * base ** (-2 * np.arange(depth // 2) / depth)
    angles_in_halves = halves != mixed
    angles = np.concatenate([angles, angles], -1) if angles_in_halves else np.repeat(angles, 2, -1)
    if halves:
        first, second = np.split(x, 2, -1)
        turned = np.concatenate([-second if sign == "one" else second, first], -1)
    else:
        first, second = x[..., ::2], x[..., 1::2]
        turned = np.stack([-second if sign == "one" else second, first], -1).reshape(x.shape)
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
    roles = ["length", "d_model", "x"]
    subject = Subject(fn, roles, seconds) if not embeds(fn) else Subject(fn, ["tokens", "table"])
    rng = np.random.default_rng(0)
    if subject.has("tokens", "table"):
        return _check_embedding(subject, rng, width)
    if not subject.has("x"):
        answer = _check_table(subject, width)
    else:
        answer = _check_added(subject, rng, width, batch_first)
    if not answer.right:
        return answer
    values: dict[str, Any] = {"length": max_length, "d_model": width}
    if subject.has("x"):
        values = {"x": np.zeros((1, max_length, width))}
        if "heads" in answer.layout:
            values = {"x": rng.normal(size=(1, 2, max_length, width))}
    try:
        rows = np.asarray(subject(**values))
        reason = f"of {max_length} positions it returns {rows.shape[-2]}"
        if rows.shape[-2] == max_length or "time, batch" in answer.layout:
            return answer
    except RejectedError as error:
        reason = f"for {max_length} positions {error}"
    return Answer(answer.check, False, answer.layout, [finding("table_short", reason)])


def embeds(fn: Callable[..., Any]) -> bool:
    """Returns True for a function of tokens and a table of embeddings."""
    try:
        return {"tokens", "table"} <= Subject(fn, ["tokens", "table"]).by_name
    except UserError:
        return False


def _check_table(subject: Subject, width: int) -> Answer:
    trials: list[Trial] = []
    for shape in [(TIME, width), (1, TIME, width), (TIME, 1, width)]:
        try:
            output = subject.array(shape, length=TIME, d_model=width)
        except RejectedError:
            continue

        def table(axis: str = "", add: bool = True, **options: Any) -> np.ndarray:
            if axis or not add:
                raise ValueError("a table has no batch")
            return sinusoids(TIME, width, **options)

        trials.append((f"table {list(shape)}", output.reshape(TIME, width), table, {}))
    if not trials:
        raise subject.refusal()
    return diagnose("check_positions", "positions", trials)


def _check_added(
    subject: Subject, rng: np.random.Generator, width: int, batch_first: bool
) -> Answer:
    """Checks positions that are added to embeddings, or rotate the heads."""
    x = rng.normal(size=(BATCH, TIME, width))
    layouts = {
        "added to [batch, time, features]": x,
        "added to [time, batch, features]": x.swapaxes(0, 1),
        "added to [time, features]": x[0],
    }

    trials: list[Trial] = []
    for layout, value in layouts.items():
        if batch_first and "[time" in layout:
            continue
        time_axis = 0 if "[time" in layout else 1

        def added(
            axis: str = "time",
            add: bool = True,
            scaled: float = 1.0,
            value: np.ndarray = value,
            time_axis: int = time_axis,
            **options: Any,
        ) -> np.ndarray:
            if axis == "first":  # a table [length, 1, width] that is cut along the batch
                table = sinusoids(1, width, **options)
                return value * scaled * add + table
            along = time_axis if axis == "time" else (1 - time_axis)
            if value.ndim == 2 and axis != "time":
                raise ValueError("there is no batch")
            table = sinusoids(value.shape[along], width, **options)
            if value.ndim == 3:
                table = np.expand_dims(table, 1 - along)
            return value * scaled * add + table

        try:
            output = subject.array(value.shape, x=value)
        except RejectedError:
            continue
        trials.append((layout, output, added, {}))
        words = f"{layout}, scaled by sqrt(features)"
        trials.append((words, output, added, {"scaled": width**0.5}))
    turned: list[Trial] = []
    heads = rng.normal(size=(2, 3, TIME, width))
    moves: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "[batch, heads, time, depth]": lambda a: a,
        "[batch, time, heads, depth]": lambda a: a.swapaxes(1, 2),
        "[batch, time, depth]": lambda a: a[:, 0],
        "[time, depth]": lambda a: a[0, 0],
    }
    for layout, move in moves.items():
        value = move(heads)

        def turn(move: Callable[..., np.ndarray] = move, **options: Any) -> np.ndarray:
            return move(rotated(heads, **options))

        try:
            output = subject.array(value.shape, x=value)
        except RejectedError:
            continue
        for halves in (True, False):
            name = f"rotary, {'halves' if halves else 'neighbours'}, {layout}"
            turned.append((name, output, turn, {"halves": halves}))
    if not trials and not turned:
        raise subject.refusal()
    answers = []
    for about, group in (("positions", trials), ("rotary", turned)):
        if group:
            answers.append(diagnose("check_positions", about, group))
    answers.sort(key=lambda answer: (not answer.right, not answer.mistakes))
    return answers[0]


def _check_embedding(subject: Subject, rng: np.random.Generator, width: int) -> Answer:
    table = rng.normal(size=(20, width))
    tokens = rng.integers(0, 20, (BATCH, TIME))

    def embedded(scale: str = "root", positions: bool = False) -> np.ndarray:
        factors = {"root": width**0.5, "none": 1.0, "full": width, "divided": width**-0.5}
        return table[tokens] * factors[scale] + positions * sinusoids(TIME, width)

    try:
        output = subject.array((BATCH, TIME, width), tokens=tokens, table=table)
    except RejectedError:
        raise subject.refusal() from None
    trials: list[Trial] = [
        ("embeddings", output, embedded, {}),
        ("embeddings with positions", output, embedded, {"positions": True}),
    ]
    return diagnose("check_positions", "embedding", trials)

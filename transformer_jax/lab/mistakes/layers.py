# SPDX-License-Identifier: Apache-2.0
"""Checks parts of a model and whole ones: masks, positions, embeddings, norm, residual, dropout,
and what a model may depend on."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes import engine
from transformer_jax.lab.mistakes.engine import SECONDS, Answer, Subject, Trial

BATCH, HEADS, TIME = 3, 2, 7
LENGTHS = np.array([7, 4, 2])
KEEP = np.arange(TIME) < LENGTHS[:, None]
"""[B, T], False in padding."""
_OF_PADDING = ~KEEP[:, :, None]
"""Queries of padding, [B, T, 1]: what they see does not matter."""
_HIDDEN = {"added": -1e9, "keep": 0.0, "hide": 1.0}
"""What a mask has where it hides, by its meaning."""
EPSILON = 1e-5
ROLES: Mapping[str, Sequence[str]] = {
    "residual": ["x", "sublayer", "norm"],
    "dropout": ["x", "rate", "train", "deterministic", "rng"],
    "norm": ["x", "scale", "shift", "norm_eps"],
    "pool": ["x", "mask"],
    "model": ["tokens"],
}
"""Part -> roles of its parameters, of which the second tells the part."""


def mask_of(meaning: str, causal: bool, padding: bool, ignored: Any, **wrong: Any) -> np.ndarray:
    """A mask [B, T, T]; queries that are `ignored` see all; `wrong` are options of table.toml."""
    triangle = np.tri(TIME, TIME, wrong.get("diagonal", 0), bool) | (not causal)
    triangle = triangle.T if "transposed" in wrong else triangle
    real = (np.arange(TIME) < (LENGTHS + wrong.get("shift", 0))[:, None]) | (not padding)
    real = real[:, :, None] if "queries" in wrong else real[:, None]
    keep = (triangle | real) if "union" in wrong and causal and padding else (triangle & real)
    keep = (~keep if "inverted" in wrong else keep) | ignored
    return np.where(keep, float(meaning == "keep"), wrong.get("hidden", _HIDDEN[meaning]))


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
    engine.require_meaning(mask)
    subject = Subject("check_mask", fn, ["tokens", "lengths", "length", "pad"], seconds)
    tokens = np.where(KEEP, pad + 1, pad)
    values = {"tokens": tokens, "lengths": LENGTHS, "length": TIME, "pad": pad}
    padding = subject.has("tokens", "lengths")
    array = subject.array(**values)
    square = array.shape[-2:] == (TIME, TIME)
    array = array[:, None] if array.shape == (BATCH, TIME) else array
    array = array[:, 0] if array.ndim == 4 else array  # an axis of heads
    try:
        whole = np.broadcast_to(array, (BATCH, TIME, TIME))
    except ValueError:
        shape = list(array.shape)
        raise UserError(f"{subject.name} returns the shape {shape}, which is no mask's") from None
    num_hidden = int(np.isneginf(whole).all(-1).sum())
    # Any large number hides as well as `_HIDDEN["added"]`.
    whole = np.where(np.abs(whole) > 1e4, np.sign(whole) * 1e9, whole)
    meanings = [mask] if mask else ["keep", "hide"]
    if whole.min() < 0 or whole.max() > 1:
        meanings = ["added"]
    answers = []
    for meaning in meanings:
        trials = []
        is_blank = (whole == _HIDDEN[meaning]).all(-1, keepdims=True)
        for causal in [True, False] if square and padding else [not padding]:
            name = " and ".join(["causal"] * causal + ["padding"] * padding) + f", {meaning}"
            ignored = _OF_PADDING & (is_blank | causal) & padding
            output = np.where(ignored, float(meaning == "keep"), whole)
            reference = partial(mask_of, meaning, causal, padding, ignored)
            trials.append(Trial(name, values, reference, output))
        answers.append(engine.diagnose(subject, "mask", trials))
    shows = answers[0]
    hides = answers[-1]
    could_hide = hides.right or 0 < len(hides.mistakes) <= (len(shows.mistakes) or 2)
    if len(answers) > 1 and not shows.right and could_hide:
        raise UserError(
            f"{subject.name}: does True or 1 in its mask mean that a key is seen? "
            'Say mask="keep" if yes, mask="hide" if it means that the key is hidden'
        )
    if shows.right and num_hidden:
        evidence = f"{num_hidden} of {BATCH * TIME} rows are all -inf: their softmax is NaN"
        return engine.judged("check_mask", shows.layout, "nan_rows", evidence)
    return shows


def with_positions(x: np.ndarray, **options: Any) -> np.ndarray:
    """Embeddings [B, T, F], scaled by a `power` of F, plus sines and cosines of positions.

    By default those of section 3.5 of the paper; other options are those of table.toml.
    """
    _, time, width = x.shape
    form = options.get("form")
    columns = np.arange(width)
    pairs = columns if form == "each" else columns - columns % 2
    shares = options.get("exponent", 1.0) * pairs / (width - 2 if form == "fairseq" else width)
    places = np.arange(time)[:, None] + options.get("start", 0)
    angles = places * options.get("base", 1e4) ** -shares
    is_cosine = (columns % 2 == 1) != (form == "swapped")
    table = np.where(is_cosine, np.cos(angles), np.sin(angles)) * options.get("positions", True)
    if form in ("blocks", "fairseq"):
        table = np.concatenate([table[:, ::2], table[:, 1::2]], 1)
    return x * width ** options.get("power", 0.0) + table


def rotated(x: np.ndarray, **options: Any) -> np.ndarray:
    """Rotary positions of [B, H, T, D] (Su et al. 2021), over halves or `neighbours`."""
    time, depth = x.shape[-2:]
    angles = np.arange(time)[:, None] * 1e4 ** (-np.arange(0, depth, 2) / depth)
    neighbours = options.get("neighbours", False)
    first, second = (x[..., ::2], x[..., 1::2]) if neighbours else np.split(x, 2, -1)
    parts = [options.get("sign", -1.0) * second, first]
    turned = np.stack(parts, -1).reshape(x.shape) if neighbours else np.concatenate(parts, -1)
    in_halves = neighbours == options.get("mixed", False)
    angles = np.concatenate([angles, angles], -1) if in_halves else np.repeat(angles, 2, -1)
    return x * np.cos(angles) + turned * np.sin(angles)


def check_positions(
    fn: Callable[..., Any], *, width: int = 10, max_length: int = 600, seconds: float = SECONDS
) -> Answer:
    """Finds the mistake in sinusoidal or rotary positions, or in a scaled embedding.

    `fn(length, d_model)` makes a table, `fn(x)` adds it to [batch, time, d_model] or rotates
    [batch, heads, time, depth], `fn(tokens, table)` embeds.

    Args:
      width: features that it takes.
      max_length: the longest input that a table must serve.
    """
    rng = np.random.default_rng(0)
    subject = Subject("check_positions", fn, ["table", "tokens", "length", "d_model", "x"], seconds)
    if {"tokens", "table"} <= subject.by_name:
        table = rng.normal(size=(20, width))
        tokens = rng.integers(0, 20, (BATCH, TIME))
        reference = partial(with_positions, table[tokens], power=0.5, positions=False)
        layout = Trial("embeddings", {"tokens": tokens, "table": table}, reference)
        readings: dict[str, Any] = {"": {}, " with positions": {"positions": True}}
        return engine.diagnose(subject, "embedding", subject.trials([layout], readings))
    subject = Subject("check_positions", fn, ["length", "d_model", "x"], seconds)
    sizes = {"length": TIME, "d_model": width}
    adds = subject.has("x")
    # A table is what is added to zeros.
    x = rng.normal(size=(BATCH if adds else 1, TIME, width)) * adds
    layout = Trial("", sizes | {"x": x}, partial(with_positions, x))
    readings = {"": {}, ", scaled by sqrt(features)": {"power": 0.5}} if adds else {"": {}}
    layouts = engine.laid_out("btf", ["btf", "tbf", "tf"], layout)
    trials = {"positions": subject.trials(layouts, readings)}
    x = rng.normal(size=(BATCH, HEADS, TIME, width))
    layout = Trial("", {"x": x}, partial(rotated, x))
    layouts = engine.laid_out("bhtd", ["bhtd", "bthd", "btd", "td"], layout)
    readings = {", rotary, halves": {}, ", rotary, neighbours": {"neighbours": True}}
    trials["rotary"] = subject.trials(layouts, readings) if adds else []
    parts = [about for about in trials if trials[about]] or ["positions"]
    answers = [engine.diagnose(subject, about, trials[about]) for about in parts]
    # A right answer, or else one that names a mistake.
    answer = min(answers, key=lambda answer: (not answer.right, not answer.mistakes))
    if not answer.right:
        return answer
    arguments: dict[str, Any] = sizes | {"length": max_length}
    if adds:
        x = answer.trial.arguments["x"]
        arguments["x"] = np.take(x, np.zeros(max_length, int), x.shape.index(TIME))
    try:
        array = subject.array(**arguments)
        reason = f"it returns the shape {list(array.shape)}"
        if max_length in array.shape:  # all positions read the same features
            rows = np.moveaxis(array, array.shape.index(max_length), 0).reshape(max_length, -1)
            num_apart = len(np.unique(rows.round(6), axis=0))
            reason = f"only {num_apart} differ" if num_apart < max_length else ""
    except engine.RejectedError as error:
        reason = error.reason
    evidence = f"for {max_length} positions {reason}"
    short = engine.judged("check_positions", answer.layout, "table_short", evidence)
    return short if reason else answer


def normed(x: np.ndarray, scale: Any, shift: Any, center: bool = True, **wrong: Any) -> np.ndarray:
    """LayerNorm over features, without `center` RMSNorm; `wrong` are options of table.toml."""
    axes = tuple(wrong.get("axis", [-1]))
    mean = x.mean(axes, keepdims=True)
    # RMSNorm divides by the mean square: the variance and the square of the mean.
    squares = x.var(axes, ddof=wrong.get("ddof", 0), keepdims=True) + (0 if center else mean**2)
    result = (x - mean if center else x) / (squares + EPSILON) ** wrong.get("power", 0.5)
    affine = wrong.get("affine")
    if affine == "swapped":
        return result * shift + scale
    return result * (1.0 if affine == "none" else scale) + (0.0 if affine else shift)


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
        part = parts[0] if parts else ""
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
    values = {"x": x, "mask": KEEP.astype(np.float64), "sublayer": sublayer, "norm": norm}
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
    changed = engine.difference(outputs[1], x)
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
        change = engine.difference(model.array(tokens=ids)[:, :end], output[: len(ids), :end])
        if change > model.tolerance(output.size):
            return engine.judged("check_model", layout, name, f"{words} by {change:.2g}")
    if output.min() >= 0 and np.abs(output.sum(-1) - 1).max() < 1e-3:
        evidence = "all outputs are positive and sum to 1"
        return engine.judged("check_model", layout, "returns_probabilities", evidence)
    return Answer("check_model", layout, right=True, evidence="no logits change that may not")

# SPDX-License-Identifier: Apache-2.0
"""Checks attention: one head or several, of projected tensors or with its own projections."""

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes.answer import TOLERANCE, Answer, Trial, diagnose, difference
from transformer_jax.lab.mistakes.answer import found as finding
from transformer_jax.lab.mistakes.calls import SECONDS, RejectedError, Subject, to_numpy

BATCH, HEADS, TIME, DEPTH = 2, 3, 5, 4  # distinct, so that a layout cannot pass for another
WIDTH = HEADS * DEPTH
_WEIGHTS = ("wq", "wk", "wv", "wo")

APART: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[int, int]]] = {
    "[batch, heads, time, depth]": (lambda a: a, (BATCH, HEADS)),
    "[batch, time, heads, depth]": (lambda a: a.swapaxes(1, 2), (BATCH, HEADS)),
    "[batch, time, depth], one head": (lambda a: a[:, 0], (BATCH, 1)),
    "[time, batch, depth], one head": (lambda a: a[:, 0].swapaxes(0, 1), (BATCH, 1)),
    "[time, depth], one head": (lambda a: a[0, 0], (1, 1)),
}
"""Layout of tensors of heads -> how to reach it from the first, batch and heads."""

TOGETHER: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], int]] = {
    "[batch, time, features]": (lambda a: a, BATCH),
    "[time, batch, features]": (lambda a: a.swapaxes(0, 1), BATCH),
    "[time, features]": (lambda a: a[0], 1),
}

SHAPES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "[batch, 1, time, time]": lambda keep: keep,
    "[time, time]": lambda keep: keep[0, 0],
    "[batch, time, time]": lambda keep: keep[:, 0],
    "[batch, 1, 1, time]": lambda keep: keep[:, :, :1],
    "[batch, time]": lambda keep: keep[:, 0, 0],
    "[batch, heads, time, time]": lambda keep: np.repeat(keep, HEADS, 1),
}

MEANINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "True shows": lambda keep: keep,
    "1 shows": lambda keep: keep.astype(np.float64),
    "True hides": lambda keep: ~keep,
    "1 hides": lambda keep: (~keep).astype(np.float64),
    "is added": lambda keep: np.where(keep, 0.0, -1e9),  # last: what hides at True hides at -1e9
}


def softmax(scores: np.ndarray, axis: int = -1) -> np.ndarray:
    """Softmax over an axis."""
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    keep: np.ndarray | None = None,
    *,
    scale: str | float = "root",
    axis: int = -1,
    times: int = 1,
    share: str = "qkv",
    masking: str | float = "before",
    diagonal: int | None = None,
    cache: int = 0,
    split: str = "transpose",
    merge: str = "transpose",
    heads: int = 0,
) -> np.ndarray:
    """Attention of [B, H, T, D], right by default; a query that sees no key gets NaN.

    With `heads`, the tensors and the result are [B, T, H * D]. `diagonal` is that of a causal mask;
    `cache` shifts the end of what a mask shows. The others are the mistakes of the table.
    """
    tensors = {"q": q, "k": k, "v": v}
    q, k, v = (tensors[letter] for letter in share)
    if heads:
        q, k, v = (split_heads(tensor, heads, split) for tensor in (q, k, v))
    depth = q.shape[-1]
    width = depth * q.shape[1]
    factors = {"root": depth**-0.5, "none": 1.0, "model": width**-0.5, "model_full": 1 / width}
    factors |= {"depth": 1 / depth, "times": depth**0.5, "after": 1.0}
    scores = q @ k.swapaxes(-1, -2) * (factors[scale] if isinstance(scale, str) else scale)
    if diagonal is not None:
        keep = np.tri(q.shape[2], k.shape[2], diagonal, bool) & (True if keep is None else keep)
    if keep is not None:
        if cache:
            keep = np.arange(k.shape[2]) < keep.sum(-1, keepdims=True) + cache
        if masking == "queries":
            keep = keep.swapaxes(-1, -2)
        keep = np.broadcast_to(~keep if masking == "inverted" else keep, scores.shape)
        if masking == "first head":
            keep = keep | (np.arange(scores.shape[1])[:, None, None] > 0)
        fill = masking if isinstance(masking, float) else -1e30
        if isinstance(masking, float):
            scores = np.where(keep, scores, scores + fill)
        elif masking == "zero":
            scores = np.where(keep, scores, 0)
        elif masking not in ("ignored", "after", "added"):
            scores = np.where(keep, scores, fill)
    weights = scores
    for _ in range(times):
        weights = softmax(weights, axis)
    if keep is not None and masking in ("after", "added"):
        weights = weights * keep if masking == "after" else np.where(keep, weights, weights - 1e9)
    elif keep is not None and masking != "ignored" and masking != "zero" and axis == -1:
        weights = np.where(keep.any(-1, keepdims=True), weights, np.nan)
    if scale == "after":
        weights = weights * depth**-0.5
    result = weights @ v
    if not heads:
        return result
    if merge == "transpose":
        result = result.swapaxes(1, 2)
    return result.reshape(len(q), -1, width)


def split_heads(tensor: np.ndarray, heads: int, split: str) -> np.ndarray:
    """[B, T, H * D] to [B, H, T, D]."""
    batch, time, width = tensor.shape
    if split == "reshape":
        return tensor.reshape(batch, heads, time, width // heads)
    return tensor.reshape(batch, time, heads, width // heads).swapaxes(1, 2)


def check_attention(
    fn: Callable[..., Any],
    *,
    mask: str | None = None,
    heads: int | None = None,
    params: Mapping[str, Any] | None = None,
    seconds: float = SECONDS,
) -> Answer:
    """Finds the mistake in a function of attention.

    Its parameters are recognized by name: q, k, v, mask, causal, num_heads; with projections x (or
    q, k, v) and wq, wk, wv, wo; with a cache index (sees 0 to index) or length (sees less).

    Args:
      fn: the function, or a module of PyTorch.
      mask: "keep" if True or 1 in the mask means that a key is seen, "hide" if it is hidden.
      heads: number of heads where the function has it inside.
      params: projections inside the function: wq, wk, wv, wo [in, out] and bq, bk, bv, bo.
      seconds: limit of a call.

    Raises:
      UserError: the function takes no layout, does not return, changes its arguments, or the
        meaning of its mask has to be told.
    """
    if mask not in (None, "keep", "hide"):
        raise UserError(f'mask={mask!r}: "keep" or "hide"')
    rng = np.random.default_rng(0)
    read = _module_parameters(fn) if params is None else dict(params)
    if read and heads is None:
        heads = _module_heads(fn)
    roles = ["query", "key", "value", "mask", "causal", "heads", "index", "length"]
    subject = (
        Subject(fn, ["x", *_WEIGHTS, "mask", "causal", "heads"], seconds)
        if (_has_x(fn))
        else Subject(fn, [*roles, *_WEIGHTS], seconds)
    )
    if subject.has("query") and not subject.has("value"):
        raise UserError(f"{subject.name} takes no values: a check needs (q, k, v) or (x, ...)")
    if subject.has("index") or subject.has("length"):
        return _check_cached(subject, rng)
    calls = [*_calls(subject, rng, heads, read)]
    plain = list(_trials(subject, calls, [("", None, None)]))
    batched = [trial for trial in plain if trial[1].ndim > 2]
    plain = batched or plain  # softmax over axis 1 is right only without a batch
    if plain:
        answer = diagnose("check_attention", "attention", plain)
        if not answer.right:
            return _by_properties(answer, plain)
        calls = [call for call in calls if answer.layout.startswith(call[0])]
        if not subject.has("mask"):
            return _with_warnings(answer, subject, calls[0], None)
    if not subject.has("mask"):
        raise subject.refusal()
    return _check_masked(subject, calls, mask, rng)


type _Call = tuple[str, dict[str, Any], tuple[int, ...], Callable[..., np.ndarray]]
"""A layout, arguments, shape of the result, and the reference in this layout."""


def _calls(
    subject: Subject, rng: np.random.Generator, heads: int | None, params: Mapping[str, Any]
) -> Iterator[_Call]:
    extra: dict[str, Any] = {"causal": False} if subject.has("causal") else {}
    together = bool(params) or subject.has("x") or subject.has("heads") or bool(heads)
    if not together:
        q, k, v = rng.normal(size=(3, BATCH, HEADS, TIME, DEPTH))
        for layout, (move, (batch, num_heads)) in APART.items():
            parts = [a[:batch, :num_heads] for a in (q, k, v)]
            arguments = dict(zip(("query", "key", "value"), map(move, parts), strict=True))
            reference = _moved(move, parts)
            yield layout, arguments | extra, reference().shape, reference
        return
    count = heads or (HEADS if subject.has("heads") else 1)
    if subject.has("heads"):
        extra["heads"] = count
    width = to_numpy(params["wq"]).shape[0] if params else WIDTH
    drawn = {name: rng.normal(size=(width, width)) / width**0.5 for name in _WEIGHTS}
    weights = {name: value for name, value in drawn.items() if subject.has(name)}
    inputs = rng.normal(size=(1 if subject.has("x") or params else 3, BATCH, TIME, width))
    inputs = np.broadcast_to(inputs, (3, BATCH, TIME, width))
    for transposed in [False, True] if weights else [False]:
        matrices = {n: w.T if transposed else w for n, w in weights.items()}
        matrices |= {n: np.asarray(to_numpy(a), np.float64) for n, a in params.items()}
        for layout, (move, batch) in TOGETHER.items():
            tensors = [a[:batch] for a in inputs]
            arguments = dict(zip(("query", "key", "value"), map(move, tensors), strict=True))
            arguments["x"] = arguments["query"]
            projected = [_project(a, matrices, n) for a, n in zip(tensors, "qkv", strict=True)]
            reference = _moved(move, projected, matrices, count)
            title = f"{layout}, {count} heads" + (", weights [out, in]" if transposed else "")
            yield title, arguments | extra | weights, reference().shape, reference


def _moved(
    move: Callable[[np.ndarray], np.ndarray],
    tensors: list[np.ndarray],
    matrices: Mapping[str, np.ndarray] | None = None,
    heads: int = 0,
) -> Callable[..., np.ndarray]:
    def reference(**options: Any) -> np.ndarray:
        result = attend(*tensors, heads=heads, **options)
        return move(result if matrices is None else _project(result, matrices, "o"))

    return reference


def _project(x: np.ndarray, matrices: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if f"w{name}" not in matrices:
        return x
    matrix = matrices[f"w{name}"]
    matrix = matrix.reshape(-1, x.shape[-1]) if name == "o" else matrix.reshape(x.shape[-1], -1)
    return x @ matrix + matrices.get(f"b{name}", np.zeros(1)).reshape(-1)


def _trials(subject: Subject, calls: list[_Call], masks: list[Any]) -> Iterator[Trial]:
    for (layout, arguments, shape, reference), (title, given, keep) in itertools.product(
        calls, masks
    ):
        values = dict(arguments)
        if given is not None or (subject.has("mask") and "mask" not in values):
            values["mask"] = given
        if keep is None and given is None and not _may_omit(subject, "mask"):
            values["mask"] = None
        try:
            output = subject.array(shape, **values)
        except RejectedError:
            continue
        name = layout + title
        yield name, output, reference, {"keep": keep, "diagonal": None}
        yield f"{name}, causal", output, reference, {"keep": keep, "diagonal": 0}


def _check_masked(
    subject: Subject, calls: list[_Call], meaning: str | None, rng: np.random.Generator
) -> Answer:
    """Checks with masks of all shapes and meanings, each drawn so that rows see some keys."""
    keep = rng.random((BATCH, 1, TIME, TIME)) < 0.5
    keep |= np.eye(TIME, dtype=bool)
    keep &= ~np.eye(TIME, k=1, dtype=bool)
    keep[..., -1, 0] = False
    masks = []
    for shape, cut in SHAPES.items():
        seen = keep[:, :, 2:3] if shape in ("[batch, 1, 1, time]", "[batch, time]") else keep
        seen = keep[:1] if shape == "[time, time]" else seen
        for words, encode in MEANINGS.items():
            if meaning and not words.endswith({"keep": "shows", "hide": "hides"}[meaning]):
                continue
            masks.append((f", mask {shape} {words}", encode(cut(seen)), seen))
    trials = []
    for call in calls:
        single = "[time, " in call[0] and "batch" not in call[0]
        fitting = [m for m in masks if not single or "[time, time]" in m[0]]
        trials += list(_trials(subject, [call], fitting))
    if not trials:
        raise subject.refusal()
    answer = diagnose("check_attention", "attention", trials)
    if answer.right and "hides" in answer.layout and not meaning and not _of_torch(subject):
        raise UserError(
            f"{subject.name} hides the keys where the mask is True or 1. Is that meant? Say "
            'mask="hide" if yes, mask="keep" if True means that a key may be seen'
        )
    if not answer.right:
        return answer
    call = max((c for c in calls if answer.layout.startswith(c[0])), key=lambda c: len(c[0]))
    words = next(m[0] for m in masks if answer.layout[len(call[0]) :].startswith(m[0]))
    return _with_warnings(answer, subject, call, words)


def _with_warnings(answer: Answer, subject: Subject, call: _Call, mask: str | None) -> Answer:
    """Adds what large scores and a row that sees no key give."""
    _, arguments, shape, _ = call
    large = dict(arguments)
    for name in ("query", "x"):
        if name in large:
            large[name] = large[name] * 1e4
    warnings = []
    tries = {"overflow": (large, "scores of about 1e4")}
    if mask:
        shape_of_mask, words = re.fullmatch(r", mask (\[.*\]) (.*)", mask).groups()  # type: ignore[union-attr]
        keep = np.ones((BATCH, 1, TIME, TIME), bool)
        keep[0] = False
        hidden = MEANINGS[words](SHAPES[shape_of_mask](keep))
        if words == "is added":
            hidden = np.where(hidden < 0, -np.inf, hidden)
        tries["nan_rows"] = (arguments | {"mask": hidden}, "an example whose mask hides all keys")
        large["mask"] = MEANINGS[words](SHAPES[shape_of_mask](keep | True))
    elif subject.has("mask"):
        large["mask"] = None
    for name, (values, what) in tries.items():
        try:
            nans = int(np.isnan(subject.array(shape, **values)).sum())
        except RejectedError:
            continue
        if nans:
            warnings.append(finding(name, f"{what}: {nans} of {np.prod(shape)} outputs are NaN"))
    return Answer(answer.check, True, answer.layout, warnings=warnings, evidence=answer.evidence)


def _check_cached(subject: Subject, rng: np.random.Generator) -> Answer:
    """Checks a step of decoding: one query against a cache that is filled in part."""
    q, k, v = rng.normal(size=(3, BATCH, HEADS, TIME + 2, DEPTH))
    seen = 4
    trials = []
    for layout, (move, (batch, num_heads)) in APART.items():
        parts = [a[:batch, :num_heads] for a in (q[:, :, :1], k, v)]
        arguments = dict(zip(("query", "key", "value"), map(move, parts), strict=True))
        keep = (np.arange(TIME + 2) < seen)[None, None, None]
        reference = _moved(move, parts)
        values: dict[str, Any] = arguments | {"index": seen - 1, "length": seen}
        try:
            output = subject.array(reference().shape, **values)
        except RejectedError:
            continue
        trials.append((f"{layout}, cached", output, reference, {"keep": keep}))
    if not trials:
        raise subject.refusal()
    return diagnose("check_attention", "attention", trials)


def _by_properties(answer: Answer, trials: list[Trial]) -> Answer:
    """Fits the scale where no known mistake explains the output."""
    if answer.mistakes:
        return answer
    for layout, output, reference, options in trials:
        scales = np.geomspace(1 / 128, 128, 141)
        best = min(scales, key=lambda s: difference(output, reference(scale=float(s), **options)))
        for width in 1.06 ** -np.arange(0.0, 160.0, 8.0):
            near = best * 1.06 ** (width * np.linspace(-1, 1, 9))
            best = min(near, key=lambda s: difference(output, reference(scale=float(s), **options)))
        remaining = difference(output, reference(scale=float(best), **options))
        if remaining <= TOLERANCE:
            evidence = (
                f"scores are multiplied by {best:.4g}; then the difference is {remaining:.1e}"
            )
            return Answer(answer.check, False, layout, [finding("scale_other", evidence)])
    return answer


def _has_x(fn: Callable[..., Any]) -> bool:
    """Returns True for a function of one input that it projects itself."""
    try:
        return not Subject(
            fn, ["query", "key", "value", "mask", "causal", "heads", "index", "length", *_WEIGHTS]
        ).has("value")
    except UserError:
        return True


def _may_omit(subject: Subject, role: str) -> bool:
    return all(subject.roles[name] != role for name in subject.required)


def _of_torch(subject: Subject) -> bool:
    return subject.name == "MultiheadAttention"


def _module_heads(fn: Any) -> int:
    for name in ("num_heads", "n_heads", "n_head", "nhead", "heads", "h"):
        if isinstance(getattr(fn, name, None), int):
            return getattr(fn, name)
    raise UserError(f"{type(fn).__name__}: say how many heads it has, with heads=")


def _module_parameters(fn: Any) -> dict[str, np.ndarray]:
    """Projections [in, out] of a module of PyTorch, by their usual names; none for a function."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(fn, torch.nn.Module):
        return {}
    arrays = {name: to_numpy(value) for name, value in fn.named_parameters()}
    read: dict[str, np.ndarray] = {}
    rows = [n for n in arrays if n.endswith(".weight") and arrays[n].ndim == 2]
    for name, array in arrays.items():
        kind = "b" if name.endswith("bias") else "w"
        part = re.sub(r"[._]?(weight|bias)$", "", name.lower()).rpartition(".")[2]
        matrix = array.T if kind == "w" else array
        if re.fullmatch(r"in_proj|c_attn|qkv(_?proj)?|w_?qkv|to_qkv|attn|proj_?qkv", part):
            for letter, third in zip("qkv", np.split(matrix, 3, -1), strict=True):
                read[kind + letter] = third
        elif re.fullmatch(
            r"(w_?|to_?|fc_?|proj_?|linear_?)?(q|k|v|query|key|value)s?"
            r"(_?(proj|linear|projection|lin))?",
            part,
        ):
            letter = re.sub(r"^(w_?|to_?|fc_?|proj_?|linear_?)", "", part)[0]
            read[kind + letter] = matrix
        elif re.fullmatch(
            r"(w_?|to_?|fc_?|linear_?)?(o|out|output|c|c_proj|proj)"
            r"(_?(proj|linear|projection|lin))?",
            part,
        ):
            read[kind + "o"] = matrix
        elif re.search(r"\.[0-3]\.weight$", name) and len(rows) == 4:  # a list of four layers
            read["w" + "qkvo"[rows.index(name)]] = matrix
            bias = arrays.get(name.replace("weight", "bias"))
            if bias is not None:
                read["b" + "qkvo"[rows.index(name)]] = bias
    if not {"wq", "wk", "wv"} <= read.keys():
        raise UserError(
            f"{type(fn).__name__}: its projections have unknown names; give them, with "
            "params={'wq': ..., 'wk': ..., 'wv': ..., 'wo': ...}, each [in, out]"
        )
    return read

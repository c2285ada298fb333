# SPDX-License-Identifier: Apache-2.0
"""Checks attention: one head or several, of projected tensors or with its own projections."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.special import softmax

from transformer_jax.errors import UserError
from transformer_jax.lab.mistakes import engine
from transformer_jax.lab.mistakes.engine import SECONDS, Answer, Subject, Trial, arranged, laid_out

BATCH, HEADS, TIME, DEPTH = 2, 3, 5, 4  # distinct, so that a layout cannot pass for another
TENSORS = ("query", "key", "value")
WEIGHTS = ("wq", "wk", "wv", "wo")
APART = ("bhtd", "bthd", "tbhd", "btd", "tbd", "tdb", "td")
CAUSAL = {"": {"diagonal": None}, ", causal": {"diagonal": 0}}
MASKS = ("b1ts", "ts", "bts", "b11s", "bs", "bhts")
MEANINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "True: keep": lambda keep: keep,
    "1: keep": lambda keep: keep.astype(np.float64),
    "True: hide": lambda keep: ~keep,
    "1: hide": lambda keep: (~keep).astype(np.float64),
    "added": lambda keep: np.where(keep, 0.0, -1e9),  # last: what hides at True hides at -1e9
}


def split_heads(x: np.ndarray, heads: int, how: str) -> np.ndarray:
    """[B, T, H * D] as [B, H, T, D], by "transpose" (right) or by "reshape"."""
    batch, time, _ = x.shape
    if how == "reshape":
        return x.reshape(batch, heads, time, -1)
    return x.reshape(batch, time, heads, -1).swapaxes(1, 2)


def attend(tensors: Any, keep: Any = True, diagonal: int | None = None, **wrong: Any) -> np.ndarray:
    """Attention of q, k, v [B, H, T, D]. A query that sees no key gets NaN.

    Args:
      keep: True where a query sees a key, [B, H, T, S].
      diagonal: that of a causal mask.
      wrong: options of table.toml.
    """
    q, k, v = (tensors["qkv".index(letter)] for letter in wrong.get("share", "qkv"))
    _, heads, time, depth = q.shape
    of_depth, of_heads = wrong.get("powers", (-0.5, 0.0))
    scores = q @ k.swapaxes(-1, -2) * depth**of_depth * heads**of_heads * wrong.get("scale", 1.0)
    is_masked = keep is not True or diagonal is not None
    keep = np.broadcast_to(keep, scores.shape)
    if diagonal is not None:
        keep = np.tri(time, k.shape[2], diagonal, bool) & keep
    if "cache" in wrong and is_masked:
        keep = np.arange(k.shape[2]) < keep.sum(-1, keepdims=True) + wrong["cache"]
    keep = keep.swapaxes(-1, -2) if "transposed" in wrong else keep
    keep = ~keep if "inverted" in wrong and is_masked else keep
    if "tiled" in wrong:
        keep = np.tile(keep[:, 0], (heads, 1, 1)).reshape(scores.shape)
    if "one_head" in wrong:
        keep = keep | (np.arange(heads)[:, None, None] > 0)
    factor, added = wrong.get("hide", (1.0, -1e30))
    weights = np.where(keep, scores, scores * factor + added)
    axis = wrong.get("axis", -1)
    for _ in range(wrong.get("times", 1)):
        weights = softmax(weights, axis)
    if axis == -1 and added < -2:
        weights = np.where(keep.any(-1, keepdims=True), weights, np.nan)
    factor, added = wrong.get("hide_weights", (1.0, 0.0))
    weights = np.where(keep, weights, weights * factor + added)
    return weights * depth ** wrong.get("scale_weights", 0.0) @ v


def multi_head(
    inputs: np.ndarray, params: Mapping[str, np.ndarray], heads: int, **options: Any
) -> np.ndarray:
    """Attention of inputs [3, B, T, F] with projections wq to bo, where there are any."""

    def project(x: np.ndarray, letter: str) -> np.ndarray:
        width = x.shape[-1]
        matrix = np.reshape(params.get(f"w{letter}", np.eye(width)), (width, -1))
        return x @ matrix + np.ravel(params.get(f"b{letter}", 0.0))

    tensors = [project(x, letter) for x, letter in zip(inputs, "qkv", strict=True)]
    how = options.get("split", "transpose")
    result = attend([split_heads(x, heads, how) for x in tensors], **options)
    if options.get("merge") != "reshape":
        result = result.swapaxes(1, 2)
    return project(result.reshape(tensors[0].shape), "o")


def check_attention(
    fn: Callable[..., Any],
    *,
    mask: str | None = None,
    heads: int | None = None,
    params: Mapping[str, Any] | None = None,
    seconds: float = SECONDS,
) -> Answer:
    """Finds the mistake in a function of attention, or a module of PyTorch.

    Its parameters are recognized by name: q, k, v, mask, causal, num_heads; with projections x (or
    q, k, v) and wq, wk, wv, wo; with a cache index (sees 0 to index) or length (sees less). A
    docstring may name the axes of its mask: `mask: [batch, queries, keys]`.

    Args:
      mask: "keep" if True or 1 in the mask means that a key is seen, "hide" if it is hidden.
      heads: number of heads where the function has it inside.
      params: projections inside the function: wq, wk, wv, wo [in, out] and bq, bk, bv, bo.
      seconds: limit of a call.
    """
    engine.require_meaning(mask)
    roles = [*TENSORS, "mask", "x", "causal", "heads", *WEIGHTS, "index", "length"]
    subject = Subject("check_attention", fn, roles, seconds)
    rng = np.random.default_rng(0)
    if subject.has("value") and subject.has("index", "length"):
        q, k, v = rng.normal(size=(3, BATCH, HEADS, TIME + 2, DEPTH))
        arguments = {"query": q[:, :, :1], "key": k, "value": v, "index": 3, "length": 4}
        reference = partial(attend, [q[:, :, :1], k, v], np.arange(TIME + 2) < 4)
        layouts = laid_out("bhtd", APART, Trial(", cached", arguments, reference))
        return engine.diagnose(subject, "attention", subject.trials(layouts))
    layouts = _layouts(subject, rng, heads, fn if params is None else params)
    axes = r"^\W*(?:q|query|queries|x)\b.*?[\[(](\w+(?:, *\w+){2,3})[\])]"
    told = re.search(axes, subject.doc, re.IGNORECASE | re.MULTILINE)
    if told:
        num_axes = 1 + told[1].count(",")
        layouts = [t for t in layouts if t.arguments["query"].ndim == num_axes] or layouts
    trials = subject.trials(layouts, CAUSAL)
    trials = [t for t in trials if t.output.ndim > 2] or trials  # axis 1 is right without a batch
    if trials or not subject.has("mask"):
        answer = engine.diagnose(subject, "attention", trials)
        if not answer.right or not subject.has("mask"):
            return answer
        layouts = [answer.trial]
    return _check_masked(subject, layouts, mask, rng)


def _layouts(
    subject: Subject, rng: np.random.Generator, heads: int | None, source: Any
) -> list[Trial]:
    """Layouts with heads apart, or together where there are projections or a number of heads."""
    params = dict(source) if isinstance(source, Mapping) else _module_projections(source)
    is_self = bool(params) or not subject.has("value")
    if not (is_self or heads or subject.has("heads")):
        inputs = rng.normal(size=(3, BATCH, HEADS, TIME, DEPTH))
        tensors = dict(zip(TENSORS, inputs, strict=True))
        layout = Trial("", tensors | {"causal": False}, partial(attend, inputs))
        return laid_out("bhtd", APART, layout)
    heads = heads or getattr(source, "num_heads", None) or HEADS * subject.has("heads")
    if params and not heads:
        raise UserError(f"{subject.name}: say how many heads it has, with heads=")
    heads = heads or 1
    width = len(params["wq"]) if params else HEADS * DEPTH
    drawn = rng.normal(size=(len(WEIGHTS), width, width)) / width**0.5
    weights = {n: w for n, w in zip(WEIGHTS, drawn, strict=True) if subject.has(n)}
    inputs = rng.normal(size=(1 if is_self else 3, BATCH, TIME, width))
    inputs = np.broadcast_to(inputs, (3, BATCH, TIME, width))
    tensors = dict(zip([*TENSORS, "x"], [*inputs, inputs[0]], strict=True))
    arguments = tensors | weights | {"causal": False, "heads": heads}
    layouts = []
    for words in ("", ", weights [out, in]")[: 1 + bool(weights)]:
        matrices = {name: w.T if words else w for name, w in weights.items()} | params
        reference = partial(multi_head, inputs, matrices, heads)
        layout = Trial(f", {heads} heads{words}", arguments, reference)
        layouts += laid_out("btf", ("btf", "tbf", "tf"), layout)
    return layouts


def _check_masked(
    subject: Subject, layouts: list[Trial], meaning: str | None, rng: np.random.Generator
) -> Answer:
    """Tries masks of all orders and meanings, and at last one that hides all keys."""
    keep = rng.random((BATCH, 1, TIME, TIME)) < 0.5
    keep = keep.repeat(HEADS, 1) | np.eye(TIME, dtype=bool)  # each row sees a key
    keep &= ~np.eye(TIME, k=1, dtype=bool)
    keep[..., -1, 0] = False  # each order hides a key
    told = re.search(r"mask\W+\(?\[?\w+, *\w+, *\w+[\])]", subject.doc, re.IGNORECASE)

    def tried(orders: Sequence[str]) -> list[Trial]:
        """Trials with masks of these axes."""
        masked = []
        for layout, order, words in itertools.product(layouts, orders, MEANINGS):
            if meaning and meaning not in words:
                continue
            seen = [slice(None) if axis in order else slice(-1, None) for axis in "bhts"]
            reference = partial(layout.reference, keep=keep[tuple(seen)])
            mask = MEANINGS[words](arranged(keep, "bhts", order))
            name = f"{layout.name}, mask {engine.named_axes(order)} {words}"
            masked.append(Trial(name, {**layout.arguments, "mask": mask}, reference))
        return subject.trials(masked, CAUSAL)

    subject.rejection = None  # without a mask
    trials = tried(("bts",) if told else MASKS)
    if told and not any(trial.output.ndim > 3 for trial in trials):
        reason = subject.rejection.reason if subject.rejection else "no output"
        apart = [trial for trial in tried(["b1ts"]) if trial.output.ndim > 3]
        if apart or not trials:  # it serves heads apart, by another mask
            evidence = f"its docstring has a mask [batch, time, time]; with {[BATCH, TIME, TIME]} "
            evidence += f"for {HEADS} heads {reason}"
            layout = [*apart, *layouts][0].name
            return engine.judged(subject.check, layout, "mask_heads_axis", evidence)
    answer = engine.diagnose(subject, "attention", trials)
    if not answer.right or subject.name == "MultiheadAttention":
        return answer  # the documentation of PyTorch's says that True hides
    if not meaning and "hide" in answer.layout:
        raise UserError(
            f"{subject.name} hides the keys where the mask is True or 1. Is that meant? Say "
            'mask="hide" if yes, mask="keep" if True means that a key may be seen'
        )
    mask = answer.trial.arguments["mask"]
    hidden = np.full_like(mask, mask.reshape(-1, TIME)[-1, 0])
    is_nan = np.isnan(subject.array(**{**answer.trial.arguments, "mask": hidden}))
    if not is_nan.any():
        return answer
    evidence = f"where the mask hides all keys, {is_nan.sum()} of {is_nan.size} outputs are NaN"
    return engine.judged(subject.check, answer.layout, "nan_rows", evidence)


def _module_projections(module: Any) -> dict[str, np.ndarray]:
    """Projections wq to bo [in, out] of a module of PyTorch, by usual names; none of a function."""
    projections: dict[str, np.ndarray] = {}
    for name, value in getattr(module, "named_parameters", list)():
        *_, layer, kind = ("unknown." + name).lower().replace("in_proj_", "qkv.").split(".")
        letter = re.sub(r"^(w|to|fc|proj|linear)?_?", "", layer)[:1]
        letter = "qkvo"[int(letter) % 4] if letter.isdigit() else letter  # a list of four layers
        letters = "qkv" if re.search("qkv|attn", layer) else letter if letter in {*"qkv"} else "o"
        parts = np.split(engine.to_numpy(value).T, len(letters), -1)
        projections |= {kind[0] + third: part for third, part in zip(letters, parts, strict=True)}
    if projections and not {"wq", "wk", "wv"} <= projections.keys():
        raise UserError(
            f"{type(module).__name__}: its projections have unknown names; give them, with "
            "params={'wq': ..., 'wk': ..., 'wv': ..., 'wo': ...}, each [in, out]"
        )
    return projections

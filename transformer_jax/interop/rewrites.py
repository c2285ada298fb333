"""Models that compute the same under other options: what lets a run fit a published family.

A family asks for options, such as biases, that a run may not have. Where other parameters compute
the same under these options, they are written instead: biases of zero, dimensions in another order.
Two rewrites change a model a little, and say so.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.parameters import parameter_at

Leaves = Mapping[str, np.ndarray]
"""Path -> array."""

Rewrite = Callable[[TransformerConfig, Leaves, Any], Leaves | None]
"""(model, its arrays, the new value of the option) -> the arrays that compute the same under it;
None where there are none."""


def rewritten(
    model: TransformerConfig, leaves: Leaves, field: str, value: Any
) -> tuple[TransformerConfig, Leaves] | None:
    """The model with another value of an option, and the arrays with which it computes the same;
    None where there are none."""
    rewrite = REWRITES.get(field)
    if rewrite is None or value is None:
        return None
    changed = rewrite(model, leaves, value)
    if changed is None:
        return None
    return dataclasses.replace(model, **{field: value}), changed


def without_padding(model: TransformerConfig, leaves: Leaves) -> tuple[TransformerConfig, Leaves]:
    """Without the rows that `vocab_multiple` pads tables with."""
    cut = {}
    for path, array in leaves.items():
        of_source = path.startswith("source_embedding")
        size = model.source_vocab_size if of_source else model.target_vocab_size
        rows = size or model.vocab_size
        cut[path] = array[:rows] if _axes(path)[:1] == ("vocab",) else array
    return dataclasses.replace(model, vocab_multiple=1), cut


def _attention_biases(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """Zeros where there was no bias."""
    if value != "all" and model.attention_bias != "none":
        return None
    names = {"all": ("query", "key", "value", "output"), "qkv": ("query", "key", "value")}
    ends = tuple(f"attention/{name}/kernel" for name in names.get(value, ("output",)))
    return _with_zero_biases(leaves, ends)


def _feed_forward_biases(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    ends = tuple(f"feed_forward/{name}/kernel" for name in ("inner", "gate", "outer"))
    return _with_zero_biases(leaves, ends) if value else None


def _with_zero_biases(leaves: Leaves, ends: tuple[str, ...]) -> Leaves:
    added = dict(leaves)
    for path, array in leaves.items():
        if path.endswith(ends):
            entry = parameter_at(path)
            assert entry is not None
            bias = path.removesuffix("kernel") + "bias"
            added.setdefault(bias, np.zeros(array.shape[entry.input_axes :], array.dtype))
    return added


def _logits_bias(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    vocab_size = model.target_vocab_size or model.vocab_size
    return {**leaves, "logits_bias": np.zeros(vocab_size, np.float32)} if value else None


def _halves_of_sinusoids(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """The residual stream in another order: the dimensions that meet sines, then the others."""
    if (model.positions, value) != ("sinusoidal", "sinusoidal_halves"):
        return None
    order = _evens_then_odds(model.d_model)
    return {path: _reordered(array, _axes(path), "model", order) for path, array in leaves.items()}


def _halves_of_heads(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """Queries and keys in another order: what each pair rotates, one half of the head apart."""
    if (model.rope_layout, value) != ("pairs", "halves"):
        return None
    turning = int(model.d_k * model.rope_fraction)
    order = np.concatenate([_evens_then_odds(turning), np.arange(turning, model.d_k)])
    ends = ("query/kernel", "key/kernel", "query/bias", "key/bias", "query/scale", "key/scale")
    return {
        path: _reordered(array, _axes(path), "size", order) if path.endswith(ends) else array
        for path, array in leaves.items()
    }


def _offset(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """Rows that no position reads before that of position 0."""
    more = value - model.position_offset
    if more < 0:
        return None
    return {
        path: np.pad(array, ((more, 0), (0, 0))) if path.endswith("positions/table") else array
        for path, array in leaves.items()
    }


def _epsilon(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves:
    return leaves  # nearly the same


def _activation(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    return leaves if {model.activation, value} in (_ONE_FUNCTION, _NEARLY_ONE) else None


_ONE_FUNCTION, _NEARLY_ONE = {"silu", "swish"}, {"gelu", "gelu_exact"}


def approximations(model: TransformerConfig, other: TransformerConfig) -> list[str]:
    """What two models that were rewritten into each other compute a little differently."""
    told = []
    if model.norm_epsilon != other.norm_epsilon:
        told.append(
            f"norms add {other.norm_epsilon:g} to the variance, and {model.norm_epsilon:g} in the "
            "run (model.norm_epsilon)"
        )
    if {model.activation, other.activation} == _NEARLY_ONE:
        told.append(
            f"the activation is {other.activation}, and {model.activation} in the run; they differ "
            "by up to 5e-4"
        )
    return told


def _evens_then_odds(size: int) -> np.ndarray:
    return np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)])


def _axes(path: str) -> tuple[str, ...]:
    entry = parameter_at(path)
    return () if entry is None else entry.axes


def _reordered(
    array: np.ndarray, axes: tuple[str, ...], name: str, order: np.ndarray
) -> np.ndarray:
    for axis, one in enumerate(axes):
        array = np.take(array, order, axis=axis) if one == name else array
    return array


REWRITES: dict[str, Rewrite] = {
    "attention_bias": _attention_biases,
    "feed_forward_bias": _feed_forward_biases,
    "logits_bias": _logits_bias,
    "positions": _halves_of_sinusoids,
    "rope_layout": _halves_of_heads,
    "position_offset": _offset,
    "norm_epsilon": _epsilon,
    "activation": _activation,
}
"""By the field of the section `model`."""

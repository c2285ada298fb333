# SPDX-License-Identifier: Apache-2.0
"""Expresses a run's model as one of a published family.

A family may require options that the run's model does not have, such as biases. If other parameters
compute the same with these options, they are exported instead: with zero biases, or with dimensions
in another order. Two of these rewrites change the results slightly; `approximation_warnings`
describes them.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.interop.families import FAMILIES, Family
from transformer_jax.interop.families.base import option_value
from transformer_jax.models import MODELS
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.latent_attention import LatentOptions
from transformer_jax.nn.layer_pattern import PARAMETERS, override, pattern_text
from transformer_jax.nn.layers import ATTENTION_LAYERS, FEED_FORWARDS
from transformer_jax.nn.parameters import parameter_at
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.nn.positions.rotary import SCALINGS
from transformer_jax.ranges import short_repr
from transformer_jax.registry import options_of_entry
from transformer_jax.tasks import TASKS

Leaves = Mapping[str, np.ndarray]
"""Parameter path -> array."""

_NOT_COMPARED = (
    *("scan_layers", "dropout_bits", "initialization", "attention", "dtype", "activation_dtype"),
    *("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"),
    *("embedding_dropout_rate", "vocab_multiple"),
    *("source_vocab_size", "target_vocab_size", "vocab_size", "separator_id", "start_id"),
    *("experts.capacity_factor", "experts.balance_weight", "experts.z_weight"),
)
"""Options that do not change the float32 results of a trained model."""

_SAME_ACTIVATION = {"silu", "swish"}
_SIMILAR_ACTIVATIONS = {"gelu", "gelu_exact"}


@dataclasses.dataclass(frozen=True)
class FamilyMatch:
    """A run's model as a model of a family.

    Attributes:
      family: the published family.
      class_name: the class of transformers.
      model: options that the family supports.
      leaves: arrays that give the results of the run with these options.
      keys: content of config.json.
    """

    family: Family
    class_name: str
    model: TransformerConfig
    leaves: Leaves
    keys: dict[str, Any]


def match_family(
    model: TransformerConfig, leaves: Leaves, task: str, keys: Mapping[str, Any]
) -> FamilyMatch:
    """Finds the first family that supports all options of a model.

    Args:
      task: name of the task that the family's class must do.
      keys: keys of config.json that do not follow from the options: special tokens, sizes of
        vocabularies, labels.

    Raises:
      UserError: no family supports the options. Names the first unsupported one.
    """
    model, leaves = remove_vocab_padding(model, leaves)
    rotated = int(model.d_k * model.rope_fraction)
    if (model.attention_layer, model.positions) == ("multi_head", "rotary") and rotated % 2:
        raise UserError(
            f"--format=hf: {rotated} elements of a head's {model.d_k} are rotated "
            f"(config.model.rope_fraction is {model.rope_fraction:g}); models of transformers "
            "rotate an even number"
        )
    candidates = [
        (family.of_class(class_name), class_name)
        for family in FAMILIES.values()
        if family.architecture == model.architecture
        and (class_name := _class_for_task(family, task)) is not None
    ]
    # Families that need no rewrite come first: a DistilBERT is one, though a BERT could express it.
    candidates.sort(key=lambda candidate: bool(_keys_and_differing(candidate[0], model, keys)[1]))
    mismatches = []
    for family, class_name in candidates:
        match = _match(family, class_name, model, leaves, keys)
        if isinstance(match, FamilyMatch):
            return match
        mismatches.append((family, match))
    if not mismatches:
        raise UserError(f"--format=hf: no class of transformers does the task {task} of this run")
    family, differing = min(mismatches, key=lambda mismatch: len(mismatch[1]))
    field, value = next(iter(differing.items()))
    ours = short_repr(option_value(model, field))
    raise UserError(
        f"--format=hf: config.model.{field} is {ours}, and the nearest model of transformers "
        f"({family.model_type}) has {short_repr(value)}"
    )


def _class_for_task(family: Family, task: str) -> str | None:
    """The family's class for a task. A class that writes a target can do every task that does."""
    writes_target = "target" in TASKS[task].sides
    for name, class_task in family.tasks.items():
        if class_task == task or (writes_target and "target" in TASKS[class_task].sides):
            return name
    return None


def _match(
    family: Family,
    class_name: str,
    model: TransformerConfig,
    leaves: Leaves,
    other_keys: Mapping[str, Any],
) -> FamilyMatch | dict[str, Any]:
    """Match with one family. If there is none, the options that differ, with the family's values.

    A round trip through config.json shows what differs. One option is rewritten at a time, until
    nothing differs or nothing that differs can be rewritten.
    """
    while True:
        keys, differing = _keys_and_differing(family, model, other_keys)
        if not differing:
            return FamilyMatch(family, class_name, model, leaves, keys)
        for field, value in differing.items():
            rewrite = _REWRITES.get(field)
            # The value None: the family has no such option.
            rewritten = rewrite(model, leaves, value) if rewrite and value is not None else None
            if rewritten is not None:
                model = dataclasses.replace(model, **{field: value})
                leaves = rewritten
                break
        else:
            return differing


def _keys_and_differing(
    family: Family, model: TransformerConfig, other_keys: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of config.json, and the options that are lost in them, with the family's values."""
    keys = {**family.defaults, **family.keys(model), **other_keys}
    try:
        theirs = _canonical_options(default_model(family.options(keys)))
    except ValueError:  # the family derives the size of heads from other options
        return keys, {"key_size": None}
    differing = {
        field: theirs.get(field)
        for field, value in _canonical_options(model).items()
        if value != theirs.get(field)
    }
    return keys, differing


def default_model(options: Mapping[str, Any]) -> TransformerConfig:
    """The section `model` with these options, and the architecture's defaults for all others."""
    defaults = getattr(MODELS[options["architecture"]], "defaults", {})
    base = {name.removeprefix("model."): value for name, value in defaults.items()}
    return override(TransformerConfig(**base), options)


def _canonical_options(model: TransformerConfig) -> dict[str, Any]:
    """Options that determine a model's results, each written in one way."""
    named = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    del named["options"]
    # An override that equals the model's own value changes nothing.
    effective = [
        {
            name: value
            for name, value in overrides.items()
            if name == PARAMETERS or value != option_value(model, name)
        }
        for overrides in model.pattern
    ]
    named["layers"] = pattern_text(effective) if any(effective) else None
    layers = [model.of_layer(i) for i in range(len(model.pattern))]
    for layer in layers:
        named |= _component_options(layer)
    named |= {"key_size": model.d_k, "value_size": model.d_v}
    named["num_key_value_heads"] = model.key_value_heads
    key_size = model.d_k  # elements of a key that are compared with a query's
    if model.attention_layer == "latent":
        key_size += model.options_of(LatentOptions).rotary_size
    # Rounded: a key of config.json that is a root or square of it differs in the last digit.
    named["attention_scale"] = round(model.attention_scale or key_size**-0.5, 9)
    if model.architecture != "encoder_decoder":  # one table: "target" ties it as "all" does
        tied = model.tie_embeddings in ("all", "target")
        named["tie_embeddings"] = "all" if tied else "none"
    if model.positions == "t5" and model.max_distance is None:
        named["max_distance"] = 128  # what None means
    # A field counts if any layer reads it.
    unread = set(_NOT_COMPARED)
    for registry in (MODELS, POSITIONS, SCALINGS, ATTENTION_LAYERS, FEED_FORWARDS):
        chooser = registry.field.removeprefix("model.")
        by_layer = [registry.unread[getattr(layer, chooser)] for layer in layers]
        unread |= {field.removeprefix("model.") for field in frozenset.intersection(*by_layer)}
    return {name: value for name, value in named.items() if name not in unread}


def _component_options(layer: TransformerConfig) -> dict[str, Any]:
    """Options of a layer's components, {"entry.option": value}."""
    values: dict[str, Any] = {}
    scaling = layer.rope_scaling
    for entry in (layer.attention_layer, layer.feed_forward, layer.positions, scaling):
        cls = options_of_entry("model", entry)
        if cls is not None:
            options = vars(layer.options_of(cls))
            values |= {f"{entry}.{option}": value for option, value in options.items()}
    if scaling == "yarn":  # rounded, and what None means
        values["yarn.attention_factor"] = round(SCALINGS[scaling].magnitude(layer), 9)
    return values


def remove_vocab_padding(
    model: TransformerConfig, leaves: Leaves
) -> tuple[TransformerConfig, Leaves]:
    """Removes the rows that `vocab_multiple` adds to embedding tables."""
    unpadded = dict(leaves)
    for path, array in leaves.items():
        if _axes(path)[:1] == ("vocab",):
            is_source = path.startswith("source_embedding")
            size = model.source_vocab_size if is_source else model.target_vocab_size
            unpadded[path] = array[: size or model.vocab_size]
    return dataclasses.replace(model, vocab_multiple=1), unpadded


def approximation_warnings(model: TransformerConfig, other: TransformerConfig) -> list[str]:
    """Describes how the results of a rewritten model differ from those of the original."""
    warnings = []
    if model.norm_epsilon != other.norm_epsilon:
        warnings.append(
            f"norms add {other.norm_epsilon:g} to the variance, and {model.norm_epsilon:g} in the "
            "run (model.norm_epsilon)"
        )
    if {model.activation, other.activation} == _SIMILAR_ACTIVATIONS:
        warnings.append(
            f"the activation is {other.activation}, and {model.activation} in the run; they differ "
            "by up to 5e-4"
        )
    return warnings


def _add_attention_biases(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    if value != "all" and model.attention_bias != "none":
        return None
    names = {"all": "query|key|value|output", "qkv": "query|key|value"}.get(value, "output")
    return _with_zero_biases(leaves, f"attention/({names})")


def _add_feed_forward_biases(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    return _with_zero_biases(leaves, "feed_forward/(inner|gate|outer)") if value else None


def _with_zero_biases(leaves: Leaves, linear_maps: str) -> Leaves:
    """Adds biases to linear maps, a regular expression of the ends of their paths."""
    added = dict(leaves)
    for path, array in leaves.items():
        if re.search(f"{linear_maps}/kernel$", path):
            entry = parameter_at(path)
            assert entry is not None
            bias = path.removesuffix("kernel") + "bias"
            added.setdefault(bias, np.zeros(array.shape[entry.input_axes :], array.dtype))
    return added


def _change_logits_bias(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """Adds a zero bias, or removes that of a classifier, which computes no logits of tokens."""
    vocab_size = model.target_vocab_size or model.vocab_size
    if value:
        return {**leaves, "logits_bias": np.zeros(vocab_size, np.float32)}
    others = {path: array for path, array in leaves.items() if path != "logits_bias"}
    return others if "classifier/kernel" in leaves else None


def _reorder_sinusoids(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """Reorders the residual stream: dimensions with sines first, then those with cosines."""
    if (model.positions, value) != ("sinusoidal", "sinusoidal_halves"):
        return None
    return _reorder(leaves, "model", _evens_then_odds(model.d_model))


def _reorder_rotary_pairs(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """Reorders queries and keys: neighbors that are rotated as a pair move half a head apart."""
    if (model.attention_layer, model.rope_layout, value) != ("multi_head", "pairs", "halves"):
        return None
    rotated = int(model.d_k * model.rope_fraction)
    order = np.concatenate([_evens_then_odds(rotated), np.arange(rotated, model.d_k)])
    ends = ("query/kernel", "key/kernel", "query/bias", "key/bias", "query/scale", "key/scale")
    return _reorder(leaves, "size", order, ends)


def _reorder(leaves: Leaves, name: str, order: np.ndarray, ends: tuple[str, ...] = ("",)) -> Leaves:
    """Reorders the axes with this name in all arrays whose paths have one of the ends."""
    reordered = dict(leaves)
    for path in leaves:
        for axis, axis_name in enumerate(_axes(path)):
            if axis_name == name and path.endswith(ends):
                reordered[path] = np.take(reordered[path], order, axis)
    return reordered


def _add_token_types(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """Adds a table of one token type, which is zero, to a model without token types."""
    if (model.num_token_types, value) != (0, 1):
        return None
    return {**leaves, "input/token_types": np.zeros((1, model.d_model), np.float32)}


def _add_position_rows(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    """Adds unused rows before that of position 0."""
    rows = value - model.position_offset
    if rows < 0:
        return None
    return {
        path: np.pad(array, ((rows, 0), (0, 0))) if path.endswith("positions/table") else array
        for path, array in leaves.items()
    }


def _accept_activation(model: TransformerConfig, leaves: Leaves, value: Any) -> Leaves | None:
    return leaves if {model.activation, value} in (_SAME_ACTIVATION, _SIMILAR_ACTIVATIONS) else None


def _evens_then_odds(size: int) -> np.ndarray:
    return np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)])


def _axes(path: str) -> tuple[str, ...]:
    entry = parameter_at(path)
    return () if entry is None else entry.axes


_REWRITES: dict[str, Callable[[TransformerConfig, Leaves, Any], Leaves | None]] = {
    "attention_bias": _add_attention_biases,
    "feed_forward_bias": _add_feed_forward_biases,
    "logits_bias": _change_logits_bias,
    "positions": _reorder_sinusoids,
    "rope_layout": _reorder_rotary_pairs,
    "num_token_types": _add_token_types,
    "position_offset": _add_position_rows,
    "norm_epsilon": lambda model, leaves, value: leaves,  # approximately the same
    "activation": _accept_activation,
}
"""Field of the section `model` -> function (model, arrays, new value) -> arrays that compute the
same with the new value; None if there are none."""

# SPDX-License-Identifier: Apache-2.0
"""Pattern of layers: config fields that differ from layer to layer, repeated through a stack.

The text of a pattern has an item for each layer of one period, separated by "|". An item sets
fields of the section `model`, or is "default"; "3 x" before it repeats it three times:

    3 x attention_window=128 | positions=none

"parameters=K" names the layer whose parameters and fields a layer uses:

    parameters=0 | parameters=1
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.fields import Field, fields_of
from transformer_jax.ranges import check_fields, short_repr
from transformer_jax.registry import options_of_entry

LAYER_FIELDS = (
    *("block", "attention_layer", "attention_window", "num_key_value_heads", "attention_scale"),
    *("qk_norm", "logit_cap", "positions", "rope_theta", "rope_scaling", "rope_factor"),
    *("feed_forward", "d_ff", "activation", "gated_feed_forward"),
)
"""Fields that a layer may override, and options of its components ("experts.num_chosen")."""

PARAMETERS = "parameters"
"""In the overrides of a layer: index of the layer whose parameters it uses."""

Overrides = Mapping[str, Any]
"""{field: its value in a layer}."""

_DEFAULT = "default"
_MOST = 256  # layers in a period
_ITEM = re.compile(r"(?:(?P<count>[1-9]\d{0,2})\s*x\s+)?(?P<fields>.*)", re.DOTALL)
_FIELD = re.compile(r"([a-z][\w.]*)=([^\s|=]+)")


def read_pattern(text: str, config_class: type) -> tuple[Overrides, ...]:
    """Overrides of each layer of a period, with values of the types of their fields. ValueError if
    the text is no pattern, or a field may not be overridden or has another type."""
    return tuple(
        {name: _typed(name, value, config_class) for name, value in layer.items()}
        for layer in _parse(text)
    )


def pattern_text(value: Any) -> Any:
    """The shortest text of a pattern, which may be text or, in a config file, a tuple of dicts.
    Other values are returned unchanged. ValueError if the text is no pattern."""
    if isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value):
        value = " | ".join(_item(item) for item in value)
    if not isinstance(value, str):
        return value
    items = itertools.groupby(_item(layer) for layer in _parse(value))
    counted = [(item, len(list(equal))) for item, equal in items]
    return " | ".join(item if count == 1 else f"{count} x {item}" for item, count in counted)


def override(config: Any, overrides: Overrides) -> Any:
    """The config of a layer: its own fields, and its own options of components."""
    fields = {name: value for name, value in overrides.items() if "." not in name}
    options = {type(instance): instance for instance in config.options}
    for name in sorted(overrides.keys() - fields):  # the same order in every process
        entry, _, option = name.partition(".")
        cls = options_of_entry("model", entry)
        assert cls is not None
        before = options.get(cls) or config.options_of(cls)
        changed = dataclasses.replace(before, **{option: overrides[name]})
        check_fields(changed)
        options[type(changed)] = changed
    return dataclasses.replace(config, **fields, options=tuple(options.values()))


@functools.lru_cache(64)
def _parse(text: str) -> Sequence[Mapping[str, str]]:
    layers: list[Mapping[str, str]] = []
    for item in text.split("|"):
        match = _ITEM.fullmatch(item.strip())
        assert match is not None  # the group "fields" matches any text
        parts = match["fields"].split() if match["fields"] != _DEFAULT else []
        fields = [_FIELD.fullmatch(part) for part in parts]
        overrides = {field[1]: field[2] for field in fields if field is not None}
        if len(overrides) < len(parts) or not match["fields"]:
            raise ValueError(
                f"layers has the item {short_repr(item.strip())}; write items as in "
                "'3 x attention_window=128 | positions=none', each field once, or 'default'"
            )
        layers += [overrides] * int(match["count"] or 1)
    if len(layers) > _MOST:
        raise ValueError(f"layers has {len(layers)} layers in a period; at most {_MOST} can be")
    return layers


def _item(overrides: Mapping[str, Any]) -> str:
    texts = {name: str(value) for name, value in overrides.items()}
    lowered = {"None": "none", "True": "true", "False": "false"}
    return " ".join(f"{k}={lowered.get(v, v)}" for k, v in sorted(texts.items())) or _DEFAULT


def _field(name: str, config_class: type) -> Field:
    entry, dot, _ = name.partition(".")
    if not dot and name in LAYER_FIELDS:
        return fields_of("model", config_class)[f"model.{name}"]
    options = options_of_entry("model", entry) if dot else None
    fields = fields_of(entry, options) if options else {}
    if name in fields:
        return fields[name]
    if fields:
        allowed = f"the options of model.{entry} are {', '.join(fields)}"
    else:
        allowed = (
            f"a layer may have its own {', '.join(LAYER_FIELDS)}, and options of its components"
        )
    raise ValueError(f"layers sets {name}; {allowed}")


def _typed(name: str, text: str, config_class: type) -> Any:
    """The value of a text, of the type of its field."""
    if name == PARAMETERS:
        if not text.isdecimal() or int(text) >= _MOST:
            raise ValueError(f"layers: parameters is {text!r}, not the number of a layer, from 0")
        return int(text)
    field = _field(name, config_class)
    try:
        return field.typed(text)
    except ValueError as error:
        raise ValueError(f"layers: {name} {error}") from error

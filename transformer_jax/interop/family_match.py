"""Which published family a run's model is of, and the options and arrays with which it is one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families import FAMILIES, Family
from transformer_jax.interop.rewrites import Leaves, rewritten, without_padding
from transformer_jax.models import MODELS
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.nn.positions.rotary import SCALINGS
from transformer_jax.ranges import short_repr

_FREE = (
    *("scan_layers", "dropout_bits", "initialization", "attention", "dtype", "activation_dtype"),
    *("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"),
    *("embedding_dropout_rate", "vocab_multiple"),
    *("source_vocab_size", "target_vocab_size", "vocab_size", "separator_id"),
)
"""Options that change nothing in what a trained model computes, in float32."""


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A model as one of a family.

    Attributes:
      family: of transformers.
      name: the class.
      model: options that the family has.
      leaves: the arrays with which they compute what the run computes.
      keys: its config.json.
    """

    family: Family
    name: str
    model: TransformerConfig
    leaves: Leaves
    keys: dict[str, Any]


def fit(model: TransformerConfig, leaves: Leaves, task: str, keys: Mapping[str, Any]) -> Fitted:
    """The first family that has all options of a model.

    Args:
      model: of the run.
      leaves: its arrays.
      task: of the run.
      keys: what config.json says besides the options: ids of special tokens and vocabulary sizes.

    Raises:
      UserError: none has; the option that stands in the way is named.
    """
    model, leaves = without_padding(model, leaves)
    refusals = []
    for family in FAMILIES.values():
        if family.architecture != model.architecture:
            continue
        name = _class(family, task)
        if name is None:
            continue
        found = _fitted(family, name, model, leaves, keys)
        if isinstance(found, Fitted):
            return found
        refusals.append((len(found), family, found))
    if not refusals:
        raise UserError(f"--format=hf: no class of transformers does the task {task} of this run")
    _, family, differing = min(refusals, key=lambda refusal: refusal[0])
    field, theirs = next(iter(differing.items()))
    raise UserError(
        f"--format=hf: config.model.{field} is {short_repr(getattr(model, field))}, and the "
        f"nearest model of transformers ({family.model_type}) has {short_repr(theirs)}"
    )


def _class(family: Family, task: str) -> str | None:
    """The family's class for a task; all classes with an encoder and a decoder do any."""
    pairs = family.architecture == "encoder_decoder"
    return next((name for name, of in family.tasks.items() if pairs or of == task), None)


def _fitted(
    family: Family, name: str, model: TransformerConfig, leaves: Leaves, given: Mapping[str, Any]
) -> Fitted | dict[str, Any]:
    """The model in a family, or the options that it has otherwise."""
    while True:
        keys = {**family.defaults, **family.keys(model), **given}
        try:
            differing = differences(model, default_model(family.options(keys)))
        except ValueError:  # the family derives the size of heads from the others
            return {"key_size": None}
        if not differing:
            return Fitted(family, name, model, leaves, keys)
        for field, value in differing.items():
            if (step := rewritten(model, leaves, field, value)) is not None:
                model, leaves = step
                break
        else:
            return differing


def default_model(options: Mapping[str, Any]) -> TransformerConfig:
    """The section `model` with these options, and what they leave open as the architecture has
    it."""
    defaults = getattr(MODELS[options["architecture"]], "defaults", {})
    base = {name.removeprefix("model."): value for name, value in defaults.items()}
    return TransformerConfig(**(base | dict(options)))


def differences(model: TransformerConfig, other: TransformerConfig) -> dict[str, Any]:
    """The options that matter and differ, with their values in the other model."""
    ours, theirs = _meaning(model), _meaning(other)
    return {field: theirs.get(field) for field, value in ours.items() if value != theirs.get(field)}


def _meaning(model: TransformerConfig) -> dict[str, Any]:
    """The options that say what a model computes, each in one form."""
    named = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    named |= {"key_size": model.d_k, "value_size": model.d_v}
    named["num_key_value_heads"] = model.key_value_heads
    named["attention_scale"] = round(model.attention_scale or model.d_k**-0.5, 9)
    if model.attention_window is None:
        del named["full_attention_every"]
    if model.architecture != "encoder_decoder":
        tied = model.tie_embeddings in ("all", "target")
        named["tie_embeddings"] = "all" if tied else "none"
    if model.positions == "t5" and model.max_distance is None:
        named["max_distance"] = 128
    unread = {*_FREE, *_unread(MODELS, model.architecture)}
    unread |= _unread(POSITIONS, model.positions) | _unread(SCALINGS, model.rope_scaling)
    return {name: value for name, value in named.items() if name not in unread}


def _unread(registry: Mapping[str, Any], name: str) -> set[str]:
    """The options that entries of a registry read, and this one does not."""
    every = {field for entry in registry.values() for field in getattr(entry, "reads", ())}
    unread = every - set(getattr(registry[name], "reads", ()))
    return {field.removeprefix("model.") for field in unread}

"""What is said of a family of published models: how `config.json` and tensors are to be read.

A family says things once, for both directions. What it cannot say of a run is found by going there
and back: options that come back as others are those that the family does not have.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.interop.families.keys import check_keys
from transformer_jax.interop.links import Link
from transformer_jax.nn.config import TransformerConfig

Keys = Mapping[str, Any]
"""What a config.json says."""

Options = Mapping[str, Any]
"""{field: value} of the section `model` of a config."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu_exact",
    "gelu_new": "gelu",
    "silu": "silu",
    "swish": "swish",
    "relu2": "squared_relu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_python": "gelu_exact",
}
"""The activations of transformers -> ours."""


def theirs(activation: str) -> str:
    """The first name that transformers has for an activation of ours."""
    names = [name for name, ours in ACTIVATIONS.items() if ours == activation]
    return names[0] if names else activation


@dataclasses.dataclass(frozen=True)
class Family:
    """The models of one `model_type`.

    Attributes:
      model_type: as config.json names it.
      architecture: ours, an entry of `models.MODELS`.
      tasks: class of transformers, as "architectures" in config.json has it -> our task.
      same: key of config.json -> field of the section `model` that means the same.
      fixed: fields that have one value in all models of the family.
      read: keys -> options that follow from several keys, or from one in another form.
      written: model -> keys; the inverse of `read`.
      links: model -> where the arrays stand.
      defaults: what keys mean that are not there.
      required: keys that have no counterpart here -> the one value with which they do nothing.
      computed: model -> tensors that hold no parameter, but that files of the family have.
      prefix: the tensors' names begin with this; files of bare models leave it out.
      left_out: regular expression of tensors that no model here has.
      activation: the key that names the activation; None: `read` sees to it.
    """

    model_type: str
    architecture: str
    tasks: Mapping[str, str]
    same: Mapping[str, str]
    fixed: Options
    links: Callable[[TransformerConfig], Iterable[Link]]
    read: Callable[[Keys], Options] = lambda keys: {}
    written: Callable[[TransformerConfig], Keys] = lambda model: {}
    defaults: Keys = dataclasses.field(default_factory=dict)
    required: Keys = dataclasses.field(default_factory=dict)
    computed: Callable[[TransformerConfig], Mapping[str, np.ndarray]] = lambda model: {}
    prefix: str = ""
    left_out: str = r"(?!)"
    activation: str | None = None

    def options(self, keys: Keys) -> dict[str, Any]:
        """The section `model` of a model with these keys.

        Raises:
          UserError: a key is missing, is of another type, or says what no model here does.
        """
        keys = {**self.defaults, **keys}
        check_keys(keys)
        for key, value in self.required.items():
            if keys.get(key, value) != value:
                raise UserError(
                    f"config.json: {key} is {keys[key]!r}; models here know only {value!r}"
                )
        wanted = [*self.same, *([self.activation] if self.activation else [])]
        if missing := [key for key in wanted if key not in keys]:
            raise UserError(f"config.json has no {missing[0]}, which {self.model_type} needs")
        options = {"architecture": self.architecture, **self.fixed}
        options |= {field: keys[key] for key, field in self.same.items()}
        if self.activation:
            options["activation"] = activation(keys[self.activation], self.activation)
        return options | dict(self.read(keys))

    def keys(self, model: TransformerConfig) -> dict[str, Any]:
        """The config.json of a model, as far as its options say it."""
        keys = {key: getattr(model, field) for key, field in self.same.items()}
        if self.activation:
            keys[self.activation] = theirs(model.activation)
        return {"model_type": self.model_type, **keys, **self.required, **self.written(model)}


def activation(name: Any, key: str) -> str:
    """Ours; UserError where there is none."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"config.json: {key} is {name!r}; models here have {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def alike(keys: Keys, *names: str) -> Any:
    """The value that these keys share; UserError where they differ."""
    values = [keys[name] for name in names if name in keys]
    if not values:
        raise UserError(f"config.json has no {names[0]}")
    if any(value != values[0] for value in values):
        listed = " and ".join(f"{name} {keys[name]!r}" for name in names if name in keys)
        raise UserError(f"config.json: {listed} differ; models here have one for both")
    return values[0]

# SPDX-License-Identifier: Apache-2.0
"""Description of a family of published models: its config keys and its tensors.

One description serves import and export. Export finds what a family cannot express by a round trip:
fields that come back from config.json with another value are not supported by the family.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax import ranges
from transformer_jax.errors import UserError, reason_of
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.parameters import parameter_at
from transformer_jax.registry import options_of_entry

Keys = Mapping[str, Any]
"""Content of a config.json."""


class ReadKeys(collections.UserDict[str, Any]):
    """Content of a JSON file (`data`) that notes which of its keys are read.

    Attributes:
      read: names of the keys read so far, whether the file has them or not.
    """

    def __init__(self, content: Keys):
        super().__init__(content)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.data[key]

    def unread(self) -> dict[str, Any]:
        """Keys of the file that were not read, without those that are null."""
        return {
            key: value
            for key, value in self.data.items()
            if key not in self.read and value is not None
        }


def with_defaults(keys: Keys, defaults: Keys) -> Keys:
    """Keys of a file, and values for those that it lacks. `ReadKeys` note what is read of it."""
    return collections.ChainMap(keys, defaults)  # type: ignore[arg-type]  # nothing is written


Fields = dict[str, str | tuple[str, Any]]
"""`Family.fields`."""

SIZES: Fields = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_length",
}
"""Part of `Family.fields` of most families."""

Options = Mapping[str, Any]
"""Field of the config section `model`, or an option "entry.option" of a component -> value."""

_VALUES: Mapping[str, Sequence[tuple[Any, Any]]] = {
    "activation": (
        ("relu", "relu"),
        ("gelu", "gelu_exact"),
        ("gelu_new", "gelu"),
        ("silu", "silu"),
        ("swish", "swish"),
        ("relu2", "squared_relu"),
        ("gelu_pytorch_tanh", "gelu"),
        ("gelu_python", "gelu_exact"),
    ),
    "attention_bias": ((True, "all"), (False, "none"), (False, "qkv"), (False, "output")),
    "tie_embeddings": ((True, "all"), (True, "target"), (False, "none"), (False, "inputs")),
}
"""Field of the section `model` -> pairs of a value in config.json and ours. The first pair with a
value holds."""

_PROJECTIONS = ("query", "key", "value")

REQUIRED: Keys = {"pruned_heads": {}, "quantization_config": {}}
"""`Family.required` of all families."""


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """An array of ours, and the tensor that contains it.

    Attributes:
      path: of the array, such as "encoder/layer_0/feed_forward/inner/kernel".
      names: of the tensor. A file has one or more of them, with equal content if there are several
        (tied matrices). The first is written.
      transposed: True if a linear map's matrix is stored as [outputs, inputs], as in PyTorch.
      part: index of the array among the parts of the tensor.
      sizes: length of each part along the tensor's axis of outputs; none if it has one part.
      heads: number of heads; among these outputs, each has all its parts in turn.
      offset: the array is the tensor plus this: scales of norms may be stored as their distance
        from 1.
      leading_axes: number of axes of size 1 before the others.
    """

    path: str
    names: tuple[str, ...]
    transposed: bool = True
    part: int = 0
    sizes: tuple[int, ...] = ()
    heads: int = 1
    offset: float = 0.0
    leading_axes: int = 0

    def tensor_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the whole tensor, given the shape of our array."""
        flat = self._flat_shape(shape)
        if self.sizes:
            flat = (*flat[:-1], self.heads * sum(self.sizes))
        return (*(1,) * self.leading_axes, *(flat[::-1] if self._is_transposed else flat))

    def to_array(self, tensor: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Our array, of the given shape, from the tensor; a view if possible."""
        flat = tensor.T if self._is_transposed else tensor
        by_head = flat.reshape(*flat.shape[:-1], self.heads, -1)
        part = np.split(by_head, np.cumsum(self.sizes[:-1]), axis=-1)[self.part]
        array = part.reshape(shape)
        return array + np.float32(self.offset) if self.offset else array

    def to_tensor(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The whole tensor from our arrays, its parts in their order; inverts `to_array`."""
        flat = [part.reshape(self._flat_shape(part.shape)) for part in parts]
        by_head = [part.reshape(*part.shape[:-1], self.heads, -1) for part in flat]
        joined = np.concatenate(by_head, axis=-1)
        tensor = joined.reshape(*joined.shape[:-2], -1) - np.float32(self.offset)
        tensor = tensor.T if self._is_transposed else tensor
        return tensor.reshape((1,) * self.leading_axes + tensor.shape)

    @property
    def _is_transposed(self) -> bool:
        return self.transposed and self._num_input_axes > 0

    @property
    def _num_input_axes(self) -> int:
        """Number of input axes of a linear map's kernel; 0 for any other array."""
        entry = parameter_at(self.path)
        return entry.input_axes if entry is not None and entry.is_linear else 0

    def _flat_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """[inputs, outputs] for a kernel, one axis for a bias, unchanged for other arrays."""
        inputs = self._num_input_axes
        if inputs:
            return math.prod(shape[:inputs]), math.prod(shape[inputs:])
        return (math.prod(shape),) if self.path.endswith("bias") else tuple(shape)


def map_modules(path: str, prefix: str, names: Mapping[str, str]) -> Iterator[TensorMapping]:
    """Weights and biases of linear maps and norms: path of ours -> name of the published module.

    A module without bias ignores the second.
    """
    for ours, name in names.items():
        weight = "scale" if "norm" in ours.rpartition("/")[2] else "kernel"
        yield TensorMapping(f"{path}{ours}/{weight}", (f"{prefix}{name}.weight",))
        yield TensorMapping(f"{path}{ours}/bias", (f"{prefix}{name}.bias",))


@dataclasses.dataclass(frozen=True)
class Joined:
    """Linear maps of the same input whose outputs share a tensor.

    Attributes:
      paths: of the linear maps in a layer.
      sizes: outputs of each.
      heads: number of heads; each has outputs of all linear maps in turn.
    """

    paths: Sequence[str]
    sizes: tuple[int, ...]
    heads: int = 1

    def mappings(self, layer: str, tensor: str) -> Iterator[TensorMapping]:
        """Weights and biases in a layer, and the published module `tensor`."""
        for part, path in enumerate(self.paths):
            for ours, theirs in {"kernel": "weight", "bias": "bias"}.items():
                stored = (f"{tensor}.{theirs}",)
                array = f"{layer}{path}/{ours}"
                yield TensorMapping(array, stored, True, part, self.sizes, self.heads)


def join_projections(*sizes: int) -> Joined:
    """Queries, keys and values of a layer, with these numbers of outputs."""
    return Joined([f"self_attention/{name}" for name in _PROJECTIONS], sizes)


def join_gated(size: int) -> Joined:
    """The two inner linear maps of a gated feed-forward network, each with `size` outputs."""
    return Joined(["feed_forward/gate", "feed_forward/inner"], (size, size))


def map_layers(
    stack: str,
    prefix: str,
    count: int,
    names: Mapping[str, str],
    joined: Mapping[str, Joined] | None = None,
) -> Iterator[TensorMapping]:
    """`map_modules` of the layers of a stack, which the published names number after `prefix`.

    Args:
      joined: published module -> the linear maps whose weights and biases it has.
    """
    for i in range(count):
        layer = f"{stack}/layer_{i}/"
        published = f"{prefix}.{i}."
        yield from map_modules(layer, published, names)
        for name, linear_maps in (joined or {}).items():
            yield from linear_maps.mappings(layer, f"{published}{name}")


def attention_modules(path: str, prefix: str, names: Sequence[str]) -> dict[str, str]:
    """Linear maps of an attention layer; `names` of query, key, value and output after `prefix`."""
    projections = (*_PROJECTIONS, "output")
    return {
        f"{path}/{projection}": f"{prefix}.{name}"
        for projection, name in zip(projections, names, strict=True)
    }


@dataclasses.dataclass(frozen=True)
class Head:
    """Head of a task, if it differs from those of a family's other tasks.

    Attributes:
      modules: linear maps of ours -> names of the published ones.
      fixed_fields: fields of the section `model` that all models with the head have.
    """

    modules: Mapping[str, str]
    fixed_fields: Options = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Family:
    """Published models of one `model_type`.

    Attributes:
      model_type: value of the key in config.json.
      architecture: an entry of `models.MODELS`.
      tasks: class of transformers ("architectures" in config.json) -> our task.
      fields: key of config.json -> field of the section `model` with the same meaning, or this
        field and the key's value in `defaults`.
      fixed_fields: fields that have the same value in all models of the family, unless one of
        `fields` or `to_options` sets them.
      mappings: model -> mappings of its arrays to tensors; of several for one array, the last
        holds. Mappings of arrays that the model does not have are ignored.
      to_options: keys -> fields that follow from several keys, or from one with another meaning.
      to_keys: model -> keys; the inverse of `to_options`.
      defaults: values of keys that a config.json leaves out, with those in `fields`: of the class
        of transformers, never ours.
      required: key without equivalent here -> the only value with which it has no effect. A model
        with another value is refused.
      neutral: key without equivalent here -> the value with which it has no effect. Another value
        changes how the model is trained or used, not what it computes: it is warned about.
      no_effect: keys that do not change what the model computes, beside those of all families
        (`config_json.NO_EFFECT`).
      constant_tensors: model -> tensors that contain no parameters but belong in the file.
      prefix: of all tensor names. Files of models without a head leave it out.
      ignored_tensors: regular expression of tensors that are not imported.
      heads: task -> its head, if that is not among `mappings`.
    """

    model_type: str
    architecture: str
    tasks: Mapping[str, str]
    fields: Fields
    fixed_fields: Options
    mappings: Callable[[TransformerConfig], Iterable[TensorMapping]]
    to_options: Callable[[Keys], Options] = lambda keys: {}
    to_keys: Callable[[TransformerConfig], Keys] = lambda model: {}
    defaults: Keys = dataclasses.field(default_factory=dict)
    required: Keys = dataclasses.field(default_factory=dict)
    neutral: Keys = dataclasses.field(default_factory=dict)
    no_effect: Collection[str] = ()
    constant_tensors: Callable[[TransformerConfig], Mapping[str, np.ndarray]] = lambda model: {}
    prefix: str = ""
    ignored_tensors: str = r"(?!)"
    heads: Mapping[str, Head] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        defaults = {key: field[1] for key, field in self.fields.items() if type(field) is tuple}
        object.__setattr__(self, "defaults", defaults | dict(self.defaults))

    @property
    def field_names(self) -> dict[str, str]:
        """Key of config.json -> field of the section `model`."""
        fields = self.fields.items()
        return {key: field if isinstance(field, str) else field[0] for key, field in fields}

    def of_class(self, class_name: str) -> "Family":
        """The family with the head of one of its classes."""
        head = self.heads.get(self.tasks[class_name])
        if head is None:
            return self

        def mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
            yield from self.mappings(model)
            yield from map_modules("", "", head.modules)

        fixed = {**self.fixed_fields, **head.fixed_fields}
        return dataclasses.replace(self, fixed_fields=fixed, mappings=mappings, heads={})

    def mappings_by_path(self, model: TransformerConfig) -> dict[str, TensorMapping]:
        """Path of an array -> its mapping."""
        return {mapping.path: mapping for mapping in self.mappings(model)}

    def options(self, keys: Keys) -> dict[str, Any]:
        """Fields of the section `model` for a config.json.

        Args:
          keys: of the config.json. `ReadKeys` note which of them a family reads; what it does not
            read, `config_json.unread_keys` judges.

        Raises:
          UserError: a key is missing, has a wrong type, or has a value that is not supported here.
        """
        keys = with_defaults(keys, self.defaults)
        for key, value in {**REQUIRED, **self.required}.items():
            require_value(keys, key, value)
        options = {"architecture": self.architecture, **self.fixed_fields}
        try:
            options |= {
                field: read_option(keys, key, field) for key, field in self.field_names.items()
            }
            return options | dict(self.to_options(keys))
        except KeyError as error:
            raise UserError(
                f"config.json has no {error.args[0]}, which {self.model_type} needs"
            ) from error
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise UserError(f"config.json is no {self.model_type}'s: {reason_of(error)}") from error

    def keys(self, model: TransformerConfig) -> dict[str, Any]:
        """Keys of config.json that follow from the section `model`."""
        # A model here may leave this rate to that of all sublayers, a published one has a number.
        model = dataclasses.replace(model, embedding_dropout_rate=model.embedding_dropout)
        keys = {
            key: key_value(field, option_value(model, field))
            for key, field in self.field_names.items()
        }
        if self.architecture == "encoder_decoder":
            keys["is_encoder_decoder"] = True
        return {"model_type": self.model_type, **keys, **self.required, **self.to_keys(model)}


def require_value(keys: Keys, key: str, supported: Any) -> None:
    """Raises UserError if a key has another value than the only one that is supported."""
    if keys.get(key) not in (None, supported):
        raise UserError(f"config.json: {key} is {keys[key]!r}; only {supported!r} is supported")


def option_value(model: TransformerConfig, name: str) -> Any:
    """Value of a field of the section `model`, or of an option "entry.option"."""
    entry, _, field = name.rpartition(".")
    cls = options_of_entry("model", entry)
    return getattr(model if cls is None else model.options_of(cls), field)


def read_option(keys: Keys, key: str, name: str) -> Any:
    """Value of a field of the section `model`, or of an option "entry.option", for that of a key.

    Raises:
      UserError: the value has another type, is out of range, or has no equivalent here.
    """
    value = keys[key]
    pairs = _VALUES.get(name)
    if pairs is not None:
        for theirs, ours in pairs:
            if value == theirs:
                return ours
        supported = ", ".join(dict.fromkeys(str(theirs) for theirs, _ in pairs))
        raise UserError(f"config.json: {key} is {value!r}; supported are {supported}")
    entry, _, field = name.rpartition(".")
    reason = ranges.violation(options_of_entry("model", entry) or TransformerConfig, field, value)
    if reason is not None:
        raise UserError(f"config.json: {key} is {ranges.short_repr(value)}{reason}")
    return value


def key_value(field: str, option: Any) -> Any:
    """Value of a key of config.json for that of a field; the inverse of `read_option`."""
    for theirs, ours in _VALUES.get(field, ()):
        if option == ours:
            return theirs
    return option

# SPDX-License-Identifier: Apache-2.0
"""Description of a family of published models: its config keys and its tensors.

One description serves import and export. Export finds what a family cannot express by a round trip:
fields that come back from config.json with another value are not supported by the family.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.interop.tensor_mapping import TensorMapping
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.ranges import Range, short_repr
from transformer_jax.registry import options_of_entry

Keys = Mapping[str, Any]
"""Content of a config.json."""


class ReadKeys(Keys):
    """Content of a JSON file that notes which of its keys are read.

    Attributes:
      content: the keys of the file, and their values.
      read: names of the keys read so far, whether the file has them or not.
    """

    def __init__(self, content: Keys):
        self.content = dict(content)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self.content[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.content)

    def __len__(self) -> int:
        return len(self.content)

    def with_defaults(self, defaults: Keys) -> Self:
        """Adds values for missing keys. The result and the original note together what is read."""
        keys = type(self)({**defaults, **self.content})
        keys.read = self.read
        return keys

    def unread(self) -> dict[str, Any]:
        """Keys of the file that were not read, without those that are null."""
        return {
            key: value
            for key, value in self.content.items()
            if key not in self.read and value is not None
        }


Options = Mapping[str, Any]
"""Field of the config section `model`, or an option "entry.option" of a component -> value."""

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
"""Activation in transformers -> ours."""

_SIZE = Range(1, 2**31 - 1)
_AMOUNT = Range(0, 1e30, "(]")
_RATE = Range(0, 1, "[)")

_SIZES = (
    *("d_model", "hidden_size", "dim", "n_embd", "d_kv", "head_dim"),
    *("d_ff", "intermediate_size", "hidden_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
    *("num_attention_heads", "n_heads", "n_head", "num_heads", "num_key_value_heads"),
    *("max_position_embeddings", "n_positions", "original_max_position_embeddings"),
    *("relative_attention_num_buckets", "relative_attention_max_distance", "sliding_window"),
    "sliding_window_pattern",
    *("num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
    *("n_routed_experts", "kv_lora_rank", "q_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("vocab_size", "decoder_vocab_size"),
)
_AMOUNTS = (
    *("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "query_pre_attn_scalar"),
    *("attn_logit_softcapping", "final_logit_softcapping", "rope_theta", "partial_rotary_factor"),
    *("rope_local_base_freq", "routed_scaling_factor", "beta_fast", "beta_slow"),
    *("factor", "low_freq_factor", "high_freq_factor"),
)
_RATES = (
    *("dropout", "attention_dropout", "activation_dropout", "dropout_rate", "hidden_dropout_prob"),
    *("attention_probs_dropout_prob", "embd_pdrop", "resid_pdrop", "attn_pdrop"),
)
_OTHER_TYPES: Mapping[str, tuple[type, Range | None]] = {
    **dict.fromkeys(
        ("type_vocab_size", "max_window_layers", "first_k_dense_replace", "n_shared_experts"),
        (int, Range(0, 2**31 - 1)),
    ),
    **dict.fromkeys(("mscale", "mscale_all_dim"), (float, Range(0, 1e30))),
    "pad_token_id": (int, Range(-1, 2**31 - 1)),
    **dict.fromkeys(("tie_word_embeddings", "share_encoder_decoder_embeddings"), (bool, None)),
    **dict.fromkeys(("scale_embedding", "scale_decoder_outputs"), (bool, None)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window"), (bool, None)),
    **dict.fromkeys(("activation_function", "hidden_act", "hidden_activation"), (str, None)),
    **dict.fromkeys(("activation", "feed_forward_proj", "rope_type", "type"), (str, None)),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), (dict, None)),
    **dict.fromkeys(("norm_topk_prob", "output_router_logits"), (bool, None)),
    **dict.fromkeys(("layer_types", "mlp_only_layers"), (list, None)),
}
_TYPES: Mapping[str, tuple[type, Range | None]] = {
    **dict.fromkeys(_SIZES, (int, _SIZE)),
    **dict.fromkeys(_AMOUNTS, (float, _AMOUNT)),
    **dict.fromkeys(_RATES, (float, _RATE)),
    **_OTHER_TYPES,
}
"""Key of config.json -> its type and range."""

REQUIRED: Keys = {"pruned_heads": {}, "quantization_config": {}}
"""`Family.required` of all families."""

_MAY_BE_NULL = (
    *("head_dim", "n_inner", "num_decoder_layers", "num_key_value_heads", "decoder_vocab_size"),
    *("sliding_window", "layer_types", "rope_scaling", "rope_parameters", "pad_token_id"),
    *("attn_logit_softcapping", "final_logit_softcapping", "mlp_only_layers"),
    "q_lora_rank",
)


@dataclasses.dataclass(frozen=True)
class Head:
    """Head of one class of a family, if it differs from that of the others.

    Attributes:
      mappings: of its arrays.
      fixed_fields: fields of the section `model` that all models of the class have.
    """

    mappings: Callable[[], Iterable[TensorMapping]]
    fixed_fields: Options = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Family:
    """Published models of one `model_type`.

    Attributes:
      model_type: value of the key in config.json.
      architecture: an entry of `models.MODELS`.
      tasks: class of transformers ("architectures" in config.json) -> our task.
      fields: key of config.json -> field of the section `model` with the same meaning.
      fixed_fields: fields that have the same value in all models of the family.
      mappings: model -> mappings of its arrays to tensors. Mappings of arrays that the model does
        not have are ignored.
      to_options: keys -> fields that follow from several keys, or from one with another meaning.
      to_keys: model -> keys; the inverse of `to_options`.
      defaults: values of keys that a config.json leaves out: those of the class of transformers,
        never ours.
      required: key without equivalent here -> the only value with which it has no effect. A model
        with another value is refused.
      neutral: key without equivalent here -> the value with which it has no effect. Another value
        changes how the model is trained or used, not what it computes: it is warned about.
      no_effect: keys that do not change what the model computes, beside those of all families
        (`config_json.NO_EFFECT`).
      constant_tensors: model -> tensors that contain no parameters but belong in the file.
      prefix: of all tensor names. Files of models without a head leave it out.
      ignored_tensors: regular expression of tensors that are not imported.
      heads: class of transformers -> its head, if it is not among `mappings`.
      activation_key: key that names the activation. None: `to_options` and `to_keys` convert it.
    """

    model_type: str
    architecture: str
    tasks: Mapping[str, str]
    fields: Mapping[str, str]
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
    activation_key: str | None = None

    def of_class(self, class_name: str) -> "Family":
        """The family with the head of one of its classes."""
        if class_name not in self.heads:
            return self
        head = self.heads[class_name]
        of_head = {mapping.path: mapping for mapping in head.mappings()}

        def mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
            yield from of_head.values()
            for mapping in self.mappings(model):
                if mapping.path not in of_head:
                    yield mapping

        fixed = {**self.fixed_fields, **head.fixed_fields}
        return dataclasses.replace(self, fixed_fields=fixed, mappings=mappings, heads={})

    def options(self, keys: Keys) -> dict[str, Any]:
        """Fields of the section `model` for a config.json.

        Args:
          keys: of the config.json. `ReadKeys` note which of them a family reads; what it does not
            read, `config_json.unread_keys` judges.

        Raises:
          UserError: a key is missing, has a wrong type, or has a value that is not supported here.
        """
        file = keys if isinstance(keys, ReadKeys) else ReadKeys(keys)
        keys = file.with_defaults(self.defaults)
        check_keys(keys.content)
        for key, value in {**REQUIRED, **self.required}.items():
            if keys.get(key) not in (None, value):
                raise UserError(f"config.json: {key} is {keys[key]!r}; only {value!r} is supported")
        needed = [*self.fields, *([self.activation_key] if self.activation_key else [])]
        missing = [key for key in needed if key not in keys]
        if missing:
            raise UserError(f"config.json has no {missing[0]}, which {self.model_type} needs")
        options = {"architecture": self.architecture, **self.fixed_fields}
        options |= {field: keys[key] for key, field in self.fields.items()}
        if self.activation_key:
            options["activation"] = parse_activation(keys[self.activation_key], self.activation_key)
        return options | dict(self.to_options(keys))

    def keys(self, model: TransformerConfig) -> dict[str, Any]:
        """Keys of config.json that follow from the section `model`."""
        keys = {key: option_value(model, field) for key, field in self.fields.items()}
        if self.activation_key:
            keys[self.activation_key] = activation_name(model.activation)
        return {"model_type": self.model_type, **keys, **self.required, **self.to_keys(model)}


def option_value(model: TransformerConfig, name: str) -> Any:
    """Value of a field of the section `model`, or of an option "entry.option"."""
    entry, _, field = name.rpartition(".")
    cls = options_of_entry("model", entry)
    return getattr(model if cls is None else model.options_of(cls), field)


def check_keys(keys: Keys) -> None:
    """Raises UserError if the value of a known key has a wrong type or is out of range."""
    for key in sorted(keys.keys() & _TYPES):
        value = keys[key]
        type_, limit = _TYPES[key]
        if value is None and key in _MAY_BE_NULL:
            continue
        if limit is not None:
            reason = limit.violation(value, type_)
        else:
            reason = None if isinstance(value, type_) else f"; it must be of type {type_.__name__}"
        if reason is not None:
            raise UserError(f"config.json: {key} is {short_repr(value)}{reason}")
        if type_ is dict:
            check_keys(value)


def activation_name(activation: str) -> str:
    """transformers' name of one of our activations; the first if there are several."""
    names = [name for name, ours in ACTIVATIONS.items() if ours == activation]
    return names[0] if names else activation


def parse_activation(name: Any, key: str) -> str:
    """Our name of an activation of transformers. Raises UserError, which names its key in
    config.json, if there is none."""
    if name not in ACTIVATIONS:
        raise UserError(f"config.json: {key} is {name!r}; supported are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def shared_value(keys: Keys, *names: str) -> Any:
    """Value that several keys have in common. Raises UserError if their values differ."""
    values = [keys[name] for name in names if name in keys]
    if not values:
        raise UserError(f"config.json has no {names[0]}")
    if any(value != values[0] for value in values):
        listed = " and ".join(f"{name} {keys[name]!r}" for name in names if name in keys)
        raise UserError(f"config.json: {listed} differ; models here have the same value for both")
    return values[0]

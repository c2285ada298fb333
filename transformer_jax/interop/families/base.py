"""What is said of a family of published models: how `config.json` and tensors are to be read.

A family says things once, for both directions. What it cannot say of a run is found by going there
and back: options that come back as others are those that the family does not have.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.interop.tensor_mapping import TensorMapping
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.ranges import Range, short_repr

# FOLDED interop.families.keys: What the keys of a config.json may hold: looked at before any of
# them is used.


_SIZE, _AMOUNT, _RATE = Range(1, 2**31 - 1), Range(0, 1e30, "(]"), Range(0, 1, "[)")

_SIZES = (
    *("d_model", "hidden_size", "dim", "n_embd", "d_kv", "head_dim"),
    *("d_ff", "intermediate_size", "hidden_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"),
    *("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers"),
    *("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"),
    *("num_attention_heads", "n_heads", "n_head", "num_heads", "num_key_value_heads"),
    *("max_position_embeddings", "n_positions", "original_max_position_embeddings"),
    *("relative_attention_num_buckets", "relative_attention_max_distance", "sliding_window"),
    *("vocab_size", "decoder_vocab_size"),
)
_AMOUNTS = (
    *("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "query_pre_attn_scalar"),
    *("attn_logit_softcapping", "final_logit_softcapping", "rope_theta", "partial_rotary_factor"),
    *("factor", "low_freq_factor", "high_freq_factor"),
)
_RATES = (
    *("dropout", "attention_dropout", "activation_dropout", "dropout_rate", "hidden_dropout_prob"),
    *("attention_probs_dropout_prob", "embd_pdrop", "resid_pdrop", "attn_pdrop"),
)
_OTHERS: Mapping[str, tuple[type, Range | None]] = {
    **dict.fromkeys(("type_vocab_size", "max_window_layers"), (int, Range(0, 2**31 - 1))),
    "pad_token_id": (int, Range(-1, 2**31 - 1)),
    **dict.fromkeys(("tie_word_embeddings", "share_encoder_decoder_embeddings"), (bool, None)),
    **dict.fromkeys(("scale_embedding", "scale_decoder_outputs"), (bool, None)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window"), (bool, None)),
    **dict.fromkeys(("activation_function", "hidden_act", "hidden_activation"), (str, None)),
    **dict.fromkeys(("activation", "feed_forward_proj", "rope_type", "type"), (str, None)),
    **dict.fromkeys(("rope_scaling", "rope_parameters"), (dict, None)),
    "layer_types": (list, None),
}
_KINDS: Mapping[str, tuple[type, Range | None]] = {
    **dict.fromkeys(_SIZES, (int, _SIZE)),
    **dict.fromkeys(_AMOUNTS, (float, _AMOUNT)),
    **dict.fromkeys(_RATES, (float, _RATE)),
    **_OTHERS,
}
_MAY_BE_NULL = (
    *("head_dim", "n_inner", "num_decoder_layers", "num_key_value_heads", "decoder_vocab_size"),
    *("sliding_window", "layer_types", "rope_scaling", "rope_parameters", "pad_token_id"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
)


def check_keys(keys: Mapping[str, Any]) -> None:
    """Raises UserError for a key with a value of another type, or beyond any sense."""
    for key in sorted(keys.keys() & _KINDS):
        value, (type_, limit) = keys[key], _KINDS[key]
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
    links: Callable[[TransformerConfig], Iterable[TensorMapping]]
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

# SPDX-License-Identifier: Apache-2.0
"""Llama (Touvron et al. 2023, Dubey et al. 2024), Mistral (Jiang et al. 2023), Mixtral (Jiang et
al. 2024), Qwen2 (Yang et al. 2024), Qwen3 and Qwen3-MoE (Yang et al. 2025), Gemma 2 and 3 (Gemma
team 2024, 2025) and Phi-3 (Abdin et al. 2024)."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families.base import Family, Keys, Options, check_keys
from transformer_jax.interop.tensor_mapping import (
    TensorMapping,
    map_attention,
    map_joined,
    map_linear,
    map_norm,
    map_table,
)
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.experts import ExpertsOptions
from transformer_jax.nn.layer_pattern import pattern_text
from transformer_jax.ranges import short_repr

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_LAYER_TYPES = ("sliding_attention", "full_attention")

_FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "rms_norm_eps": "norm_epsilon",
    "attention_dropout": "attention_dropout_rate",
    "max_position_embeddings": "max_length",
}
_FIXED = {
    "norm": "rms",
    "norm_placement": "pre",
    "positions": "rotary",
    "rope_layout": "halves",
    "gated_feed_forward": True,
    "attention_bias": "none",
    "feed_forward_bias": False,
    "scale_embeddings": False,
    "dropout_rate": 0.0,
}
_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_ROPE_THETA = 10_000.0
_LLAMA_IDS = {"bos_token_id": 1, "eos_token_id": 2}

_ROPE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "linear": {"factor": "rope_factor"},
    "llama3": {
        "factor": "rope_factor",
        "low_freq_factor": "rope_low_factor",
        "high_freq_factor": "rope_high_factor",
        "original_max_position_embeddings": "rope_original_length",
    },
}
"""Scaling of rotary positions (`rope_type`) -> its keys -> fields of the section `model`."""

_ROPE_KEYS = {key for keys in _ROPE_FIELDS.values() for key in keys} | {
    *("rope_type", "type", "rope_theta", "partial_rotary_factor")
}


def _to_options(keys: Keys) -> dict[str, Any]:
    return {**_shape_options(keys), **_rope_options(keys)}


def _shape_options(keys: Keys) -> dict[str, Any]:
    heads = keys["num_attention_heads"]
    size = keys.get("head_dim") or keys["hidden_size"] // heads
    return {
        "num_key_value_heads": keys.get("num_key_value_heads") or heads,
        "key_size": size,
        "value_size": size,
        "tie_embeddings": "all" if keys["tie_word_embeddings"] else "none",
    }


def _to_options_mistral(keys: Keys) -> Options:
    window = keys["sliding_window"]
    return {**_to_options(keys), **({} if window is None else {"attention_window": window})}


def _to_options_qwen(keys: Keys) -> Options:
    return {**_to_options(keys), **_window_options(keys, keys["use_sliding_window"])}


def _window_options(keys: Keys, has_window: bool = True) -> Options:
    """Window options. `layer_types`, or else `max_window_layers`, says which layers have none."""
    window = keys["sliding_window"]
    layers = keys["num_hidden_layers"]
    first = keys.get("max_window_layers", 0)
    kinds = keys.get("layer_types")
    if not has_window or window is None:
        return {}
    kinds = kinds or [_LAYER_TYPES[i < first] for i in range(layers)]
    if len(kinds) != layers or any(kind not in _LAYER_TYPES for kind in kinds):
        raise UserError(
            f"config.json: layer_types must name one of {' and '.join(_LAYER_TYPES)} for each of "
            f"{layers} layers"
        )
    full = {i for i, kind in enumerate(kinds) if kind == "full_attention"}
    if len(full) == layers:
        return {}
    if not full:
        return {"attention_window": window}
    return {"attention_window": window, "layers": _full_attention_in(full, layers)}


def _full_attention_in(full: Collection[int], layers: int) -> str:
    """The shortest pattern of layers of which those in `full` have no window."""
    items = [{"attention_window": None} if i in full else {} for i in range(layers)]
    period = next(
        n for n in range(1, layers + 1) if all(items[i] == items[i % n] for i in range(layers))
    )
    return str(pattern_text(items[:period]))


def _to_keys(model: TransformerConfig) -> dict[str, Any]:
    return {
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.d_k,
        "tie_word_embeddings": model.tie_embeddings in ("all", "target"),
        **_rope_keys(model),
    }


def _to_keys_with_window(model: TransformerConfig) -> Keys:
    return {**_to_keys(model), "sliding_window": model.attention_window}


def _to_keys_with_layer_types(model: TransformerConfig) -> Keys:
    windows = [model.of_layer(i).attention_window for i in range(model.num_layers)]
    kinds = [_LAYER_TYPES[window is None] for window in windows]
    uses = {"use_sliding_window": any(windows), "max_window_layers": 0}
    return {**_to_keys_with_window(model), **uses, "layer_types": kinds}


def _to_options_llama(keys: Keys) -> Options:
    bias = {True: "all", False: "none"}[bool(keys.get("attention_bias", False))]
    mlp = bool(keys.get("mlp_bias", False))
    return {**_to_options(keys), "attention_bias": bias, "feed_forward_bias": mlp}


def _to_keys_llama(model: TransformerConfig) -> Keys:
    biases = {"attention_bias": model.attention_bias == "all", "mlp_bias": model.feed_forward_bias}
    return {**_to_keys(model), **biases}


def _to_options_gemma2(keys: Keys) -> Options:
    kinds = [_LAYER_TYPES[i % 2] for i in range(keys["num_hidden_layers"])]
    windows = {name: keys[name] for name in ("sliding_window", "num_hidden_layers")}
    return {
        **_to_options(keys),
        **_window_options({**windows, "layer_types": keys.get("layer_types") or kinds}),
        "attention_scale": keys["query_pre_attn_scalar"] ** -0.5,
    }


def _to_keys_gemma2(model: TransformerConfig) -> Keys:
    scale = model.attention_scale or model.d_k**-0.5
    return {**_to_keys_with_layer_types(model), "query_pre_attn_scalar": _round_if_close(scale**-2)}


def _to_options_gemma3(keys: Keys) -> Options:
    """The layers with a window have rotary positions of their own, without scaling."""
    every = keys["sliding_window_pattern"]
    kinds = [_LAYER_TYPES[(i + 1) % every == 0] for i in range(keys["num_hidden_layers"])]
    windows = {name: keys[name] for name in ("sliding_window", "num_hidden_layers")}
    window = _window_options({**windows, "layer_types": keys.get("layer_types") or kinds})
    full, local = _rope_parameters_gemma3(keys)
    positions = {"max_position_embeddings": keys["max_position_embeddings"]}
    return {
        **_shape_options(keys),
        **_rope_options({**positions, "rope_parameters": full}),
        **window,
        **({"rope_theta_window": float(local["rope_theta"])} if window else {}),
        "attention_scale": keys["query_pre_attn_scalar"] ** -0.5,
    }


def _rope_parameters_gemma3(keys: Keys) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of rotary positions of layers without a window, and with one.

    Raises:
      UserError: they are no objects, or the latter have a scaling.
    """
    parameters = keys.get("rope_parameters") or {}
    if parameters and not parameters.keys() & {*_LAYER_TYPES}:
        raise UserError(
            f"config.json: rope_parameters is {short_repr(parameters)}; this family has one object "
            f"for each of {' and '.join(_LAYER_TYPES)}"
        )
    full = parameters.get("full_attention") or keys.get("rope_scaling") or {}
    local = parameters.get("sliding_attention") or {}
    for name, rope in {"full_attention": full, "sliding_attention": local}.items():
        if not isinstance(rope, dict):
            raise UserError(f"config.json: rope_parameters: {name} is {short_repr(rope)}")
        check_keys(rope)
    if local.get("rope_type", "default") != "default":
        raise UserError(
            f"config.json: rope_type of sliding_attention is {local['rope_type']!r}; only "
            "'default' is supported"
        )
    theta = {"rope_theta": keys["rope_theta"]}
    local_theta = {"rope_theta": keys["rope_local_base_freq"]}
    return theta | full, local_theta | local


def _to_keys_gemma3(model: TransformerConfig) -> Keys:
    keys = {**_to_keys_gemma2(model)}
    for name in ("use_sliding_window", "max_window_layers"):
        del keys[name]
    local = model.rope_theta_window or model.rope_theta
    return {**keys, "rope_local_base_freq": local, "sliding_window_pattern": 6}


def _mappings_gemma3(model: TransformerConfig) -> Iterator[TensorMapping]:
    """Scales of queries' and keys' norms are stored less 1, as those of the other norms."""
    for mapping in _mappings(model):
        is_of_heads = mapping.path.endswith(("norm_query/scale", "norm_key/scale"))
        yield dataclasses.replace(mapping, offset=1.0) if is_of_heads else mapping


def _round_if_close(number: float) -> float:
    """The nearest integer if the difference is within rounding, else the number itself."""
    return round(number) if abs(number - round(number)) < 1e-6 * abs(number) else number


def _rope_options(keys: Keys) -> Options:
    """Options of rotary positions. Before version 5, transformers wrote rope_theta separately.

    Raises:
      UserError: the scaling is not supported, or one of its keys is missing.
    """
    rope = _rope_parameters(keys)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _ROPE_FIELDS:
        raise UserError(
            f"config.json: rope_type is {kind!r}; supported are {', '.join(_ROPE_FIELDS)}"
        )
    unknown = sorted(rope.keys() - _ROPE_KEYS)
    if unknown:
        raise UserError(
            f"config.json: rope_parameters has {unknown[0]} {short_repr(rope[unknown[0]])}; "
            f"supported are {', '.join(sorted(_ROPE_KEYS))}"
        )
    fields = _ROPE_FIELDS[kind]
    missing = [key for key in fields if key not in rope]
    if missing:
        raise UserError(f"config.json has no {missing[0]}, which rope_type {kind!r} needs")
    fraction = rope.get("partial_rotary_factor", 1.0)
    if kind != "default" and fraction != 1:  # "default" ignores it, as in transformers
        raise UserError(
            f"config.json: partial_rotary_factor is {fraction!r}; rope_type {kind!r} of these "
            "models supports only 1.0"
        )
    return {
        "rope_theta": float(rope["rope_theta"]),
        "rope_scaling": "none" if kind == "default" else kind,
        **{field: rope[key] for key, field in fields.items()},
    }


def _rope_parameters(keys: Keys) -> dict[str, Any]:
    """Parameters of rotary positions, wherever a config.json has them."""
    others = {name: keys.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    top = {name: value for name, value in others.items() if value is not None}
    scaling = keys.get("rope_scaling")
    parameters = keys.get("rope_parameters")
    original = keys.get("original_max_position_embeddings") or keys["max_position_embeddings"]
    return {
        "rope_theta": _ROPE_THETA,
        "original_max_position_embeddings": original,
        **top,
        **(scaling or parameters or {}),
    }


def _rope_keys(model: TransformerConfig) -> Keys:
    """Keys of rotary positions, as transformers before version 5 wrote them."""
    scaling = None
    fields = _ROPE_FIELDS.get(model.rope_scaling)
    if fields:  # an export refuses the others by name
        scaling = {key: getattr(model, field) for key, field in fields.items()}
        scaling["rope_type"] = model.rope_scaling
    return {"rope_theta": model.rope_theta, "rope_scaling": scaling}


def _mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    tied = ["lm_head.weight"] if model.tie_embeddings in ("all", "target") else []
    yield map_table("embedding/table", "model.embed_tokens.weight", *tied)
    yield map_table("projection/table", "lm_head.weight")
    yield from map_norm("decoder/final_norm", "model.norm")
    sandwich = model.norm_placement == "sandwich"
    for i in range(model.num_layers):
        attention = f"decoder/layer_{i}/self_attention"
        feed_forward = f"decoder/layer_{i}/feed_forward"
        prefix = f"model.layers.{i}"
        yield from map_attention(attention, f"{prefix}.self_attn", _ATTENTION)
        yield from map_norm(f"{attention}/norm_query", f"{prefix}.self_attn.q_norm")
        yield from map_norm(f"{attention}/norm_key", f"{prefix}.self_attn.k_norm")
        yield from map_linear(f"{feed_forward}/gate", f"{prefix}.mlp.gate_proj")
        yield from map_linear(f"{feed_forward}/inner", f"{prefix}.mlp.up_proj")
        yield from map_linear(f"{feed_forward}/outer", f"{prefix}.mlp.down_proj")
        first = f"{attention}_residual"
        second = f"{feed_forward}_residual"
        yield from map_norm(f"{first}/norm_before", f"{prefix}.input_layernorm")
        # "post_attention_layernorm" follows attention in Gemma; elsewhere it precedes feed-forward.
        if sandwich:
            yield from map_norm(f"{first}/norm_after", f"{prefix}.post_attention_layernorm")
            yield from map_norm(f"{second}/norm_before", f"{prefix}.pre_feedforward_layernorm")
            yield from map_norm(f"{second}/norm_after", f"{prefix}.post_feedforward_layernorm")
        else:
            yield from map_norm(f"{second}/norm_before", f"{prefix}.post_attention_layernorm")


def _mappings_phi3(model: TransformerConfig) -> Iterator[TensorMapping]:
    """Phi-3 stores queries, keys and values in one tensor, and the two inner projections, too."""
    query_size = model.num_heads * model.d_k
    key_size = model.key_value_heads * model.d_k
    for i in range(model.num_layers):
        path = f"decoder/layer_{i}"
        prefix = f"model.layers.{i}"
        attention = [f"{path}/self_attention/{name}" for name in ("query", "key", "value")]
        sizes = (query_size, key_size, key_size)
        yield from map_joined(attention, sizes, f"{prefix}.self_attn.qkv_proj")
        inner = [f"{path}/feed_forward/{name}" for name in ("gate", "inner")]
        yield from map_joined(inner, (model.d_ff, model.d_ff), f"{prefix}.mlp.gate_up_proj")
    joined = ("query/kernel", "key/kernel", "value/kernel", "gate/kernel", "inner/kernel")
    yield from (mapping for mapping in _mappings(model) if not mapping.path.endswith(joined))


def _to_options_qwen3_moe(keys: Keys) -> Options:
    """Transformers 5 writes `num_local_experts` for `num_experts`, the key in older files."""
    experts = keys.get("num_local_experts") or keys["num_experts"]
    return {**_to_options_qwen(keys), "experts.num_experts": experts}


def _to_keys_qwen3_moe(model: TransformerConfig) -> Keys:
    experts = model.options_of(ExpertsOptions).num_experts
    return {**_to_keys_with_layer_types(model), "num_experts": experts}


def _mappings_of_experts(
    model: TransformerConfig, mlp: str, gate: str, inner: str, outer: str
) -> Iterator[TensorMapping]:
    """Mappings of experts, whose tensors have these names in the module `mlp` of a layer."""
    names = {"gate": gate, "inner": inner, "outer": outer}
    yield from (mapping for mapping in _mappings(model) if "/feed_forward/" not in mapping.path)
    for i in range(model.num_layers):
        path = f"decoder/layer_{i}/feed_forward"
        prefix = f"model.layers.{i}.{mlp}"
        yield from map_linear(f"{path}/router", f"{prefix}.gate")
        for expert in range(model.options_of(ExpertsOptions).num_experts):
            for ours, name in names.items():
                tensor = f"{prefix}.experts.{expert}.{name}.weight"
                yield TensorMapping(f"{path}/expert_{ours}/{expert}", (tensor,))


def _mappings_mixtral(model: TransformerConfig) -> Iterator[TensorMapping]:
    return _mappings_of_experts(model, "block_sparse_moe", "w1", "w3", "w2")


def _mappings_qwen3_moe(model: TransformerConfig) -> Iterator[TensorMapping]:
    return _mappings_of_experts(model, "mlp", "gate_proj", "up_proj", "down_proj")


def _to_options_phi3(keys: Keys) -> Options:
    fraction = _rope_parameters(keys).get("partial_rotary_factor", 1.0)
    dropout = {"embedding_dropout_rate": keys["embd_pdrop"]}
    return {**_to_options_mistral(keys), **dropout, "rope_fraction": fraction}


def _to_keys_phi3(model: TransformerConfig) -> Keys:
    keys = {**_to_keys_with_window(model), "partial_rotary_factor": model.rope_fraction}
    del keys["head_dim"]
    return {**keys, "embd_pdrop": model.embedding_dropout}


def _family(model_type: str, name: str, **others: Any) -> Family:
    options: dict[str, Any] = {
        "fields": _FIELDS,
        "fixed_fields": _FIXED,
        "to_options": _to_options,
        "to_keys": _to_keys,
        "defaults": _DEFAULTS,
        "activation_key": "hidden_act",
        "mappings": _mappings,
    }
    return Family(
        model_type=model_type,
        architecture="decoder_only",
        tasks={f"{name}ForCausalLM": "language_modeling", f"{name}Model": "language_modeling"},
        prefix="model.",
        ignored_tensors=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
        **(options | others),
    )


LLAMA = _family(
    "llama",
    "Llama",
    to_options=_to_options_llama,
    to_keys=_to_keys_llama,
    defaults=_DEFAULTS
    | {"max_position_embeddings": 2048, "attention_bias": False, "mlp_bias": False}
    | _LLAMA_IDS,
)
MISTRAL = _family(
    "mistral",
    "Mistral",
    to_options=_to_options_mistral,
    to_keys=_to_keys_with_window,
    defaults=_DEFAULTS
    | {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096}
    | _LLAMA_IDS,
)
_OF_QWEN = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
QWEN2 = _family(
    "qwen2",
    "Qwen2",
    fixed_fields=_FIXED | {"attention_bias": "qkv"},
    to_options=_to_options_qwen,
    to_keys=_to_keys_with_layer_types,
    defaults=_DEFAULTS | _OF_QWEN,
)
QWEN3 = _family(
    "qwen3",
    "Qwen3",
    fixed_fields=_FIXED | {"qk_norm": True},
    to_options=_to_options_qwen,
    to_keys=_to_keys_with_layer_types,
    defaults=_DEFAULTS | _OF_QWEN | {"head_dim": 128},
    required={"attention_bias": False},
)
_EXPERTS = _FIXED | {"feed_forward": "experts"}
_ROUTER = {"output_router_logits": False, "router_jitter_noise": 0.0}
MIXTRAL = _family(
    "mixtral",
    "Mixtral",
    fields=_FIELDS
    | {"num_local_experts": "experts.num_experts", "num_experts_per_tok": "experts.num_chosen"},
    fixed_fields=_EXPERTS,
    mappings=_mappings_mixtral,
    to_options=_to_options_mistral,
    to_keys=_to_keys_with_window,
    defaults=_DEFAULTS
    | {
        **{"bos_token_id": 1, "eos_token_id": 2},
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    neutral=_ROUTER,
    no_effect=("router_aux_loss_coef",),
)
QWEN3_MOE = _family(
    "qwen3_moe",
    "Qwen3Moe",
    fields={
        "moe_intermediate_size" if key == "intermediate_size" else key: field
        for key, field in _FIELDS.items()
    }
    | {"num_experts_per_tok": "experts.num_chosen", "norm_topk_prob": "experts.renormalize"},
    fixed_fields=_EXPERTS | {"qk_norm": True},
    mappings=_mappings_qwen3_moe,
    to_options=_to_options_qwen3_moe,
    to_keys=_to_keys_qwen3_moe,
    defaults=_DEFAULTS
    | {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "use_sliding_window": False,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    required={"attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
    neutral=_ROUTER,
    no_effect=("router_aux_loss_coef", "intermediate_size"),
)
GEMMA2 = _family(
    "gemma2",
    "Gemma2",
    fields=_FIELDS
    | {"attn_logit_softcapping": "logit_cap", "final_logit_softcapping": "final_logit_cap"},
    fixed_fields=_FIXED
    | {"norm": "rms_plus_one", "norm_placement": "sandwich", "scale_embeddings": True},
    to_options=_to_options_gemma2,
    to_keys=_to_keys_gemma2,
    defaults=_DEFAULTS
    | {
        **{"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    required={"attention_bias": False, "use_bidirectional_attention": False},
    no_effect=("hidden_act",),
    activation_key="hidden_activation",
)
PHI3 = _family(
    "phi3",
    "Phi3",
    fields=_FIELDS | {"resid_pdrop": "dropout_rate"},
    fixed_fields={name: value for name, value in _FIXED.items() if name != "dropout_rate"},
    mappings=_mappings_phi3,
    to_options=_to_options_phi3,
    to_keys=_to_keys_phi3,
    defaults=_DEFAULTS
    | {
        **{"bos_token_id": 1, "eos_token_id": 32_000, "pad_token_id": 32_000},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0},
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "sliding_window": None,
    },
    no_effect=("original_max_position_embeddings",),  # it scales "longrope" alone
)
GEMMA3 = dataclasses.replace(
    GEMMA2,
    model_type="gemma3_text",
    tasks={"Gemma3ForCausalLM": "language_modeling", "Gemma3TextModel": "language_modeling"},
    fixed_fields={**GEMMA2.fixed_fields, "qk_norm": True},
    mappings=_mappings_gemma3,
    to_options=_to_options_gemma3,
    to_keys=_to_keys_gemma3,
    defaults={
        **GEMMA2.defaults,
        "max_position_embeddings": 131_072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window_pattern": 6,
    },
    no_effect=(*GEMMA2.no_effect, "_sliding_window_pattern"),
)

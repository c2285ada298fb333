# SPDX-License-Identifier: Apache-2.0
"""Decoders: GPT-2 (Radford et al. 2019), Llama (Touvron et al. 2023, Dubey et al. 2024), Mistral
and Mixtral (Jiang et al. 2023, 2024), Qwen2 (Yang et al. 2024), Qwen3 and Qwen3-MoE (Yang et al.
2025), Gemma 2 and 3 (Gemma team 2024, 2025) and Phi-3 (Abdin et al. 2024)."""

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families import base
from transformer_jax.interop.families.base import Family, Fields, Keys, Options, TensorMapping
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.experts import ExpertsOptions
from transformer_jax.nn.layer_pattern import pattern_text
from transformer_jax.ranges import short_repr

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
MATRICES = {"gate": "gate_proj", "inner": "up_proj", "outer": "down_proj"}
LAYER = {
    **base.attention_modules("self_attention", "self_attn", PROJECTIONS),
    "self_attention/norm_query": "self_attn.q_norm",
    "self_attention/norm_key": "self_attn.k_norm",
    **{f"feed_forward/{ours}": f"mlp.{name}" for ours, name in MATRICES.items()},
}
PRE_NORMS = {
    "self_attention_residual/norm_before": "input_layernorm",
    "feed_forward_residual/norm_before": "post_attention_layernorm",
}
_SANDWICH_NORMS = {
    "self_attention_residual/norm_before": "input_layernorm",
    "self_attention_residual/norm_after": "post_attention_layernorm",
    "feed_forward_residual/norm_before": "pre_feedforward_layernorm",
    "feed_forward_residual/norm_after": "post_feedforward_layernorm",
}
LAYER_TYPES = ("sliding_attention", "full_attention")

FIELDS: Fields = {
    **base.SIZES,
    "rms_norm_eps": ("norm_epsilon", 1e-6),
    "attention_dropout": ("attention_dropout_rate", 0.0),
    "tie_word_embeddings": ("tie_embeddings", False),
    "hidden_act": ("activation", "silu"),
}
FIXED = {
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
_LLAMA_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_WINDOWED: Fields = {**FIELDS, "sliding_window": "attention_window"}

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


def _to_options(keys: Keys) -> dict[str, Any]:
    return {**_shape_options(keys), **_rope_options(keys)}


def _shape_options(keys: Keys) -> dict[str, Any]:
    heads = keys["num_attention_heads"]
    size = keys.get("head_dim") or keys["hidden_size"] // heads
    return {
        "num_key_value_heads": keys.get("num_key_value_heads") or heads,
        "key_size": size,
        "value_size": size,
    }


def _to_options_qwen(keys: Keys) -> Options:
    first = keys.get("max_window_layers", 0)
    kinds = [LAYER_TYPES[i < first] for i in range(keys["num_hidden_layers"])]
    window = keys["sliding_window"] if keys["use_sliding_window"] else None
    return {**_to_options(keys), **window_options(keys, kinds, window)}


def window_options(keys: Keys, default_kinds: Sequence[str], window: int | None) -> Options:
    """Window options. `layer_types`, or else the family's default, says which layers have none."""
    layers = keys["num_hidden_layers"]
    kinds = list(keys.get("layer_types") or default_kinds)
    if window is None:
        return {}
    if len(kinds) != layers or not {*kinds} <= {*LAYER_TYPES}:
        raise UserError(
            f"config.json: layer_types must name one of {' and '.join(LAYER_TYPES)} for each of "
            f"{layers} layers"
        )
    if "sliding_attention" not in kinds:
        return {}
    if "full_attention" not in kinds:
        return {"attention_window": window}
    period = next(n for n in range(1, layers + 1) if (kinds[:n] * layers)[:layers] == kinds)
    full: dict[str, Any] = {"attention_window": None}
    items = [full if kind == "full_attention" else {} for kind in kinds[:period]]
    return {"attention_window": window, "layers": pattern_text(items)}


def _to_keys(model: TransformerConfig) -> dict[str, Any]:
    """Keys of the heads and, as transformers before version 5 wrote them, of rotary positions."""
    scaling = None
    fields = _ROPE_FIELDS.get(model.rope_scaling)
    if fields:  # an export refuses the others by name
        scaling = {key: getattr(model, field) for key, field in fields.items()}
        scaling["rope_type"] = model.rope_scaling
    return {
        "num_key_value_heads": model.key_value_heads,
        "head_dim": model.d_k,
        "rope_theta": model.rope_theta,
        "rope_scaling": scaling,
    }


def _to_keys_with_layer_types(model: TransformerConfig) -> Keys:
    kinds = layer_types(model)
    return {**_to_keys(model), "sliding_window": model.attention_window, "layer_types": kinds}


def _to_keys_qwen(model: TransformerConfig) -> Keys:
    uses = {"use_sliding_window": "sliding_attention" in layer_types(model), "max_window_layers": 0}
    return {**_to_keys_with_layer_types(model), **uses}


def layer_types(model: TransformerConfig) -> list[str]:
    """Kind of each layer, one of `LAYER_TYPES`."""
    windows = [model.of_layer(i).attention_window for i in range(model.num_layers)]
    return [LAYER_TYPES[window is None] for window in windows]


def _gemma_options(keys: Keys, every: int) -> Options:
    """Options but those of positions; full attention in every n-th layer if no key says which."""
    layers = range(keys["num_hidden_layers"])
    kinds = [LAYER_TYPES[(i + 1) % every == 0] for i in layers]
    return {
        **_shape_options(keys),
        **window_options(keys, kinds, keys["sliding_window"]),
        "attention_scale": keys["query_pre_attn_scalar"] ** -0.5,
    }


def _to_keys_gemma2(model: TransformerConfig) -> Keys:
    scale = model.attention_scale or model.d_k**-0.5
    # Rounded, as the square root of a key and its square do not give the same last digits.
    scalar = round(scale**-2, 6)
    key = int(scalar) if scalar.is_integer() else scalar
    return {**_to_keys_with_layer_types(model), "query_pre_attn_scalar": key}


def _to_options_gemma3(keys: Keys) -> Options:
    """The layers with a window have rotary positions of their own, without scaling."""
    full = _rope_of_kind(keys, "full_attention") or keys.get("rope_scaling") or {}
    positions = {"max_position_embeddings": keys["max_position_embeddings"]}
    rope = {"rope_theta": keys["rope_theta"], **full}
    options = {
        **_gemma_options(keys, keys["sliding_window_pattern"]),
        **_rope_options(positions | {"rope_parameters": rope}),
    }
    local_theta = unscaled_theta(keys, "sliding_attention", keys["rope_local_base_freq"])
    if "attention_window" in options:
        options["rope_theta_window"] = local_theta
    return options


def unscaled_theta(keys: Keys, kind: str, default: float) -> float:
    """Base of the rotary positions of one kind of layers. Raises UserError if they are scaled."""
    rope = _rope_of_kind(keys, kind)
    base.require_value(rope, "rope_type", "default")
    return float(rope.get("rope_theta", default))


def _rope_of_kind(keys: Keys, kind: str) -> Keys:
    """Parameters of the rotary positions of one kind of layers; empty if the file has none."""
    parameters = keys.get("rope_parameters") or {}
    if parameters and not parameters.keys() & {*LAYER_TYPES}:
        raise UserError(
            f"config.json: rope_parameters is {short_repr(parameters)}; this family has one object "
            f"for each of {' and '.join(LAYER_TYPES)}"
        )
    return parameters.get(kind) or {}


def _to_keys_gemma3(model: TransformerConfig) -> Keys:
    local = model.rope_theta_window or model.rope_theta
    return {**_to_keys_gemma2(model), "rope_local_base_freq": local, "sliding_window_pattern": 6}


def _mappings_gemma3(model: TransformerConfig) -> Iterator[TensorMapping]:
    """Scales of queries' and keys' norms are stored less 1, as those of the other norms."""
    for mapping in _mappings(model):
        is_of_heads = mapping.path.endswith(("norm_query/scale", "norm_key/scale"))
        yield dataclasses.replace(mapping, offset=1.0) if is_of_heads else mapping


def _rope_options(keys: Keys) -> Options:
    kind, rope = read_rope(keys, _ROPE_FIELDS)
    if kind != "default":  # which ignores it, as in transformers
        base.require_value(rope, "partial_rotary_factor", 1.0)
    return {
        "rope_theta": float(rope["rope_theta"]),
        "rope_scaling": "none" if kind == "default" else kind,
        **{field: rope[key] for key, field in _ROPE_FIELDS[kind].items()},
    }


def read_rope(keys: Keys, supported: Mapping[str, Collection[str]]) -> tuple[str, dict[str, Any]]:
    """Scaling of rotary positions and their parameters, wherever a config.json has them.

    Before version 5, transformers wrote `rope_theta` separately, and `rope_scaling`.

    Args:
      supported: scaling -> its parameters.

    Raises:
      UserError: the scaling or a parameter is not supported.
    """
    names = ("rope_theta", "partial_rotary_factor")
    separate = {name: keys[name] for name in names if keys.get(name) is not None}
    scaling = keys.get("rope_scaling")
    parameters = scaling or keys.get("rope_parameters") or {}
    original = keys.get("original_max_position_embeddings") or keys["max_position_embeddings"]
    rope = {
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": original,
        **separate,
        **parameters,
    }
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in supported:
        raise UserError(f"config.json: rope_type is {kind!r}; supported are {', '.join(supported)}")
    allowed_keys = {"rope_type", "type", "original_max_position_embeddings", *names}
    allowed_keys |= {key for scaling_keys in supported.values() for key in scaling_keys}
    unknown = sorted(rope.keys() - allowed_keys)
    if unknown:
        raise UserError(
            f"config.json: rope_parameters has {unknown[0]} {short_repr(rope[unknown[0]])}; "
            f"supported are {', '.join(sorted(allowed_keys))}"
        )
    return kind, rope


def _mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    norms = _SANDWICH_NORMS if model.norm_placement == "sandwich" else PRE_NORMS
    yield from map_frame(model)
    yield from base.map_layers("decoder", "model.layers", model.num_layers, {**LAYER, **norms})


def map_frame(
    model: TransformerConfig, table: str = "model.embed_tokens", norm: str = "model.norm"
) -> Iterator[TensorMapping]:
    """Mappings of the embeddings, the output projection and the final norm."""
    tied = ("lm_head.weight",) if model.tie_embeddings in ("all", "target") else ()
    yield TensorMapping("embedding/table", (f"{table}.weight", *tied))
    yield TensorMapping("projection/table", ("lm_head.weight",))
    yield from base.map_modules("", "", {"decoder/final_norm": norm})


def _mappings_phi3(model: TransformerConfig) -> Iterator[TensorMapping]:
    """Phi-3 stores queries, keys and values in one tensor, and the two inner projections, too."""
    yield from _mappings(model)
    key_size = model.key_value_heads * model.d_k
    joined = {
        "self_attn.qkv_proj": base.join_projections(
            model.num_heads * model.d_k, key_size, key_size
        ),
        "mlp.gate_up_proj": base.join_gated(model.d_ff),
    }
    yield from base.map_layers("decoder", "model.layers", model.num_layers, {}, joined)


def _to_options_qwen3_moe(keys: Keys) -> Options:
    """Transformers 5 writes `num_local_experts` for `num_experts`, the key in older files."""
    experts = keys.get("num_local_experts") or keys["num_experts"]
    return {**_to_options_qwen(keys), "experts.num_experts": experts}


def _mappings_of_experts(
    mlp: str, names: Mapping[str, str], model: TransformerConfig
) -> Iterator[TensorMapping]:
    """Mappings of a model with experts; arguments as of `map_experts`."""
    yield from _mappings(model)
    router = {"feed_forward/router": f"{mlp}.gate"}
    yield from base.map_layers("decoder", "model.layers", model.num_layers, router)
    yield from map_experts(mlp, names, model)


def map_experts(
    mlp: str, names: Mapping[str, str], model: TransformerConfig
) -> Iterator[TensorMapping]:
    """Matrices of all experts, in the module `mlp` of a layer; `names` are ours -> the tensors."""
    experts = range(model.options_of(ExpertsOptions).num_experts)
    layers = range(model.num_layers)
    for i, expert, (ours, name) in itertools.product(layers, experts, names.items()):
        tensor = f"model.layers.{i}.{mlp}.experts.{expert}.{name}.weight"
        yield TensorMapping(f"decoder/layer_{i}/feed_forward/expert_{ours}/{expert}", (tensor,))


def _to_options_phi3(keys: Keys) -> Options:
    fraction = read_rope(keys, _ROPE_FIELDS)[1].get("partial_rotary_factor", 1.0)
    return {**_to_options(keys), "rope_fraction": fraction}


def _to_keys_phi3(model: TransformerConfig) -> Keys:
    keys = {**_to_keys(model), "partial_rotary_factor": model.rope_fraction}
    del keys["head_dim"]
    return keys


def renamed(fields: Fields, old: str, new: str) -> Fields:
    """`Family.fields` with another name for a key of config.json."""
    return {new if key == old else key: field for key, field in fields.items()}


def classes(name: str) -> dict[str, str]:
    """`Family.tasks` of a decoder: the classes with and without a head."""
    return dict.fromkeys((f"{name}ForCausalLM", f"{name}Model"), "language_modeling")


family = functools.partial(
    Family,
    architecture="decoder_only",
    fields=FIELDS,
    fixed_fields=FIXED,
    mappings=_mappings,
    to_options=_to_options,
    to_keys=_to_keys,
    prefix="model.",
    ignored_tensors=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
)
LLAMA = family(
    model_type="llama",
    tasks=classes("Llama"),
    fields=FIELDS
    | {
        "attention_bias": ("attention_bias", False),
        "mlp_bias": ("feed_forward_bias", False),
    },
    defaults=_LLAMA_IDS | {"max_position_embeddings": 2048},
)
MISTRAL = family(
    model_type="mistral",
    tasks=classes("Mistral"),
    fields=_WINDOWED,
    defaults=_LLAMA_IDS
    | {"max_position_embeddings": 131_072, "num_key_value_heads": 8, "sliding_window": 4096},
)
_OF_QWEN = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "use_sliding_window": False,
    "max_window_layers": 28,
}
QWEN2 = family(
    model_type="qwen2",
    tasks=classes("Qwen2"),
    fixed_fields=FIXED | {"attention_bias": "qkv"},
    to_options=_to_options_qwen,
    to_keys=_to_keys_qwen,
    defaults=_OF_QWEN,
)
QWEN3 = family(
    model_type="qwen3",
    tasks=classes("Qwen3"),
    fixed_fields=FIXED | {"qk_norm": True},
    to_options=_to_options_qwen,
    to_keys=_to_keys_qwen,
    defaults=_OF_QWEN | {"head_dim": 128},
    required={"attention_bias": False},
)
_EXPERTS = FIXED | {"feed_forward": "experts"}
_ROUTER = {"output_router_logits": False, "router_jitter_noise": 0.0}
MIXTRAL = family(
    model_type="mixtral",
    tasks=classes("Mixtral"),
    fields=_WINDOWED
    | {
        "num_local_experts": ("experts.num_experts", 8),
        "num_experts_per_tok": ("experts.num_chosen", 2),
    },
    fixed_fields=_EXPERTS,
    mappings=functools.partial(
        _mappings_of_experts, "block_sparse_moe", {"gate": "w1", "inner": "w3", "outer": "w2"}
    ),
    defaults=_LLAMA_IDS
    | {
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "rope_theta": 1e6,
    },
    neutral=_ROUTER,
    no_effect=("router_aux_loss_coef",),
)
QWEN3_MOE = family(
    model_type="qwen3_moe",
    tasks=classes("Qwen3Moe"),
    fields=renamed(FIELDS, "intermediate_size", "moe_intermediate_size")
    | {
        "num_experts": ("experts.num_experts", 128),
        "num_experts_per_tok": ("experts.num_chosen", 8),
        "norm_topk_prob": ("experts.renormalize", False),
    },
    fixed_fields=_EXPERTS | {"qk_norm": True},
    mappings=functools.partial(_mappings_of_experts, "mlp", MATRICES),
    to_options=_to_options_qwen3_moe,
    to_keys=_to_keys_qwen,
    defaults={
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "use_sliding_window": False,
        "moe_intermediate_size": 768,
    },
    required={"attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
    neutral=_ROUTER,
    no_effect=("router_aux_loss_coef", "intermediate_size"),
)
GEMMA2 = family(
    model_type="gemma2",
    tasks=classes("Gemma2"),
    fields=renamed(FIELDS, "hidden_act", "hidden_activation")
    | {
        "attn_logit_softcapping": ("logit_cap", 50.0),
        "final_logit_softcapping": ("final_logit_cap", 30.0),
    },
    fixed_fields=FIXED
    | {"norm": "rms_plus_one", "norm_placement": "sandwich", "scale_embeddings": True},
    to_options=lambda keys: {**_rope_options(keys), **_gemma_options(keys, 2)},
    to_keys=_to_keys_gemma2,
    defaults={
        **{"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2},
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    },
    required={"attention_bias": False, "use_bidirectional_attention": False},
    no_effect=("hidden_act",),
)
PHI3 = family(
    model_type="phi3",
    tasks=classes("Phi3"),
    fields=_WINDOWED
    | {
        "resid_pdrop": ("dropout_rate", 0.0),
        "embd_pdrop": ("embedding_dropout_rate", 0.0),
    },
    mappings=_mappings_phi3,
    to_options=_to_options_phi3,
    to_keys=_to_keys_phi3,
    defaults={
        **{"bos_token_id": 1, "eos_token_id": 32_000, "pad_token_id": 32_000},
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
    tasks=dict.fromkeys(("Gemma3ForCausalLM", "Gemma3TextModel"), "language_modeling"),
    fields={key: field for key, field in GEMMA2.fields.items() if key != "attn_logit_softcapping"},
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
    # The class of transformers has the key, and its attention does not read it.
    required={**GEMMA2.required, "attn_logit_softcapping": None},
    no_effect=(*GEMMA2.no_effect, "_sliding_window_pattern"),
)


_GPT2_LAYER = {
    "self_attention_residual/norm_before": "ln_1",
    "self_attention/output": "attn.c_proj",
    "feed_forward_residual/norm_before": "ln_2",
    "feed_forward/inner": "mlp.c_fc",
    "feed_forward/outer": "mlp.c_proj",
}


def _mappings_gpt2(model: TransformerConfig) -> Iterator[TensorMapping]:
    yield from map_frame(model, "transformer.wte", "transformer.ln_f")
    yield TensorMapping("input/positions/table", ("transformer.wpe.weight",))
    joined = {"attn.c_attn": base.join_projections(*[model.d_model] * 3)}
    layers = base.map_layers("decoder", "transformer.h", model.num_layers, _GPT2_LAYER, joined)
    for mapping in layers:  # matrices are stored as [inputs, outputs]
        yield dataclasses.replace(mapping, transposed=False)


GPT2 = Family(
    model_type="gpt2",
    architecture="decoder_only",
    tasks=dict.fromkeys(("GPT2LMHeadModel", "GPT2Model"), "language_modeling"),
    fields={
        "n_embd": "d_model",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_positions": ("max_length", 1024),
        "layer_norm_epsilon": ("norm_epsilon", 1e-5),
        "resid_pdrop": ("dropout_rate", 0.1),
        "embd_pdrop": ("embedding_dropout_rate", 0.1),
        "attn_pdrop": ("attention_dropout_rate", 0.1),
        "activation_function": ("activation", "gelu_new"),
        "tie_word_embeddings": ("tie_embeddings", True),
    },
    fixed_fields={
        "norm": "layer",
        "norm_placement": "pre",
        "positions": "learned",
        "attention_bias": "all",
        "scale_embeddings": False,
    },
    to_options=lambda keys: {"d_ff": keys.get("n_inner") or 4 * keys["n_embd"]},
    to_keys=lambda model: {"n_inner": model.d_ff},
    mappings=_mappings_gpt2,
    defaults={"bos_token_id": 50_256, "eos_token_id": 50_256, "n_inner": None},
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    no_effect=(
        *("n_ctx", "summary_type", "summary_use_proj", "summary_activation"),
        *("summary_proj_to_labels", "summary_first_dropout"),
    ),
    prefix="transformer.",
    ignored_tensors=r"transformer\.h\.\d+\.attn\.(masked_)?bias",
)

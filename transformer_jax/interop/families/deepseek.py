# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2 (2024): latent attention, and experts after the first layers."""

import math
from collections.abc import Iterator
from typing import Any

from transformer_jax.interop.families import base, decoders
from transformer_jax.interop.families.base import Joined, Keys, Options, TensorMapping
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.latent_attention import LatentOptions
from transformer_jax.nn.layer_pattern import pattern_text
from transformer_jax.nn.positions.rotary import YarnOptions

_FIELDS = decoders.renamed(decoders.FIELDS, "intermediate_size", "moe_intermediate_size") | {
    "kv_lora_rank": ("latent.kv_rank", 512),
    "q_lora_rank": ("latent.query_rank", 1536),
    "qk_rope_head_dim": ("latent.rotary_size", 64),
    "n_routed_experts": ("experts.num_experts", 64),
    "n_shared_experts": ("experts.num_shared", 2),
    # DeepSeek-V2's; the class has null, with which none can run.
    "num_experts_per_tok": ("experts.num_chosen", 6),
    "routed_scaling_factor": ("experts.routed_scale", 1.0),
}
_FIXED = decoders.FIXED | {
    "attention_layer": "latent",
    "feed_forward": "experts",
    "experts.renormalize": False,
    "experts.router": "softmax",
    "rope_layout": "pairs",
}
_LAYER = {
    "self_attention/query": "self_attn.q_proj",
    "self_attention/query_down": "self_attn.q_a_proj",
    "self_attention/norm_query": "self_attn.q_a_layernorm",
    "self_attention/query_up": "self_attn.q_b_proj",
    "self_attention/norm_latent": "self_attn.kv_a_layernorm",
    "self_attention/output": "self_attn.o_proj",
    **{f"feed_forward/{ours}": f"mlp.{name}" for ours, name in decoders.MATRICES.items()},
    "feed_forward/router": "mlp.gate",
    **{
        f"feed_forward/shared/{ours}": f"mlp.shared_experts.{name}"
        for ours, name in decoders.MATRICES.items()
    },
    **decoders.PRE_NORMS,
}
_YARN = {"factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0}


def _to_options(keys: Keys) -> Options:
    layers = keys["num_hidden_layers"]
    dense = min(keys["first_k_dense_replace"], layers)
    pattern = [{"feed_forward": "dense", "d_ff": keys["intermediate_size"]}] * dense
    return {
        "layers": pattern_text([*pattern, *[{}] * (layers - dense)]) if dense else None,
        "key_size": keys["qk_nope_head_dim"],
        "value_size": keys["v_head_dim"],
        **_rope_options(keys),
    }


def _rope_options(keys: Keys) -> Options:
    """Options of rotary positions. YaRN's temperature is a factor of rotated keys and queries and,
    by the square of `mscale_all_dim`'s, of all logits.

    Raises:
      UserError: the scaling is not supported.
    """
    kind, rope = decoders.read_rope(keys, {"default": (), "yarn": _YARN})
    base.require_value(rope, "partial_rotary_factor", 1.0)
    theta = {"rope_theta": float(rope["rope_theta"])}
    if kind == "default":
        return {**theta, "rope_scaling": "none"}
    factor, fast, slow, rotated, all_logits = (rope.get(key, _YARN[key]) for key in _YARN)
    by_all = _mscale(factor, all_logits)
    attention_factor = _mscale(factor, 1.0)
    if rotated and all_logits:  # as in transformers, it takes both to change the factor
        attention_factor = _mscale(factor, rotated) / by_all
    size = keys["qk_nope_head_dim"] + keys["qk_rope_head_dim"]
    return {
        **theta,
        "rope_scaling": "yarn",
        "rope_factor": float(factor),
        "rope_original_length": rope["original_max_position_embeddings"],
        "yarn.beta_fast": float(fast),
        "yarn.beta_slow": float(slow),
        "yarn.attention_factor": attention_factor,
        **({} if by_all == 1 else {"attention_scale": by_all**2 / math.sqrt(size)}),
    }


def _mscale(factor: float, weight: float) -> float:
    """Factor of keys and queries for YaRN's temperature (Peng et al. 2023, section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _to_keys(model: TransformerConfig) -> Keys:
    pattern = [model.of_layer(i) for i in range(model.num_layers)]
    dense = [layer for layer in pattern if layer.feed_forward == "dense"]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": model.rope_theta}
    if model.rope_scaling == "yarn":
        rope |= _yarn_keys(model)
    return {
        "first_k_dense_replace": len(dense),
        "intermediate_size": dense[0].d_ff if dense else model.d_ff,
        "num_key_value_heads": model.num_heads,
        "qk_nope_head_dim": model.d_k,
        "v_head_dim": model.d_v,
        "rope_parameters": rope,
    }


def _yarn_keys(model: TransformerConfig) -> Keys:
    """Keys of YaRN, the inverse of `_rope_options`."""
    options = model.options_of(YarnOptions)
    size = model.d_k + model.options_of(LatentOptions).rotary_size
    by_all = math.sqrt((model.attention_scale or size**-0.5) * math.sqrt(size))
    of_rotated = (options.attention_factor or _mscale(model.rope_factor, 1.0)) * by_all
    weight = 0.1 * math.log(model.rope_factor) or 1.0
    return {
        "rope_type": "yarn",
        "factor": model.rope_factor,
        "original_max_position_embeddings": model.rope_original_length,
        "beta_fast": options.beta_fast,
        "beta_slow": options.beta_slow,
        "mscale": max(of_rotated - 1, 0) / weight,
        "mscale_all_dim": max(by_all - 1, 0) / weight,
    }


def _mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    latent = model.options_of(LatentOptions)
    down = ("self_attention/latent", "self_attention/rotary")
    up = ("self_attention/key_up", "self_attention/value_up")
    joined = {
        "self_attn.kv_a_proj_with_mqa": Joined(down, (latent.kv_rank, latent.rotary_size)),
        "self_attn.kv_b_proj": Joined(up, (model.d_k, model.d_v), heads=model.num_heads),
    }
    yield from decoders.map_frame(model)
    yield from base.map_layers("decoder", "model.layers", model.num_layers, _LAYER, joined)
    yield from decoders.map_experts("mlp", decoders.MATRICES, model)


DEEPSEEK_V2 = decoders.family(
    model_type="deepseek_v2",
    tasks=decoders.classes("DeepseekV2"),
    fields=_FIELDS,
    fixed_fields=_FIXED,
    mappings=_mappings,
    to_options=_to_options,
    to_keys=_to_keys,
    defaults={
        **{"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 2048},
        **{"qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": 0},
        **{"moe_intermediate_size": 1407, "intermediate_size": 11_008},
    },
    required={
        **{"rms_norm_eps": 1e-6, "attention_bias": False, "mlp_bias": False},  # norms of latents
        **{"topk_method": "greedy", "norm_topk_prob": False, "scoring_func": "softmax"},
        "moe_layer_freq": 1,
    },
    neutral={"output_router_logits": False},
    no_effect=(
        *("num_key_value_heads", "head_dim", "qk_head_dim", "n_group", "topk_group"),
        *("aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp"),
        "intermediate_size",  # of the first layers, if there are any
    ),
)

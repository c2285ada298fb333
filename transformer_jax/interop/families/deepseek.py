# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2 (2024): latent attention, and experts after the first layers."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families.base import Family, Keys, Options
from transformer_jax.interop.tensor_mapping import (
    TensorMapping,
    map_joined,
    map_linear,
    map_norm,
    map_table,
)
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.experts import ExpertsOptions
from transformer_jax.nn.latent_attention import LatentOptions
from transformer_jax.nn.layer_pattern import pattern_text
from transformer_jax.nn.positions.rotary import YarnOptions
from transformer_jax.ranges import short_repr

_FIELDS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "kv_lora_rank": "latent.kv_rank",
    "q_lora_rank": "latent.query_rank",
    "qk_rope_head_dim": "latent.rotary_size",
    "n_routed_experts": "experts.num_experts",
    "n_shared_experts": "experts.num_shared",
    "num_experts_per_tok": "experts.num_chosen",
    "routed_scaling_factor": "experts.routed_scale",
    "moe_intermediate_size": "d_ff",
    "attention_dropout": "attention_dropout_rate",
    "max_position_embeddings": "max_length",
}
_FIXED = {
    "attention_layer": "latent",
    "feed_forward": "experts",
    "experts.renormalize": False,
    "experts.router": "softmax",
    "norm": "rms",
    "norm_placement": "pre",
    "norm_epsilon": 1e-6,
    "positions": "rotary",
    "rope_layout": "pairs",
    "gated_feed_forward": True,
    "attention_bias": "none",
    "feed_forward_bias": False,
    "scale_embeddings": False,
    "dropout_rate": 0.0,
}
_MATRICES = {"gate": "gate_proj", "inner": "up_proj", "outer": "down_proj"}
_YARN = {"factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.0, "mscale_all_dim": 0.0}
_ROPE_KEYS = {*_YARN, "rope_type", "type", "rope_theta", "original_max_position_embeddings"}


def _to_options(keys: Keys) -> Options:
    layers = keys["num_hidden_layers"]
    dense = min(keys["first_k_dense_replace"], layers)
    pattern = [{"feed_forward": "dense", "d_ff": keys["intermediate_size"]}] * dense
    return {
        "layers": pattern_text([*pattern, *[{}] * (layers - dense)]) if dense else None,
        "key_size": keys["qk_nope_head_dim"],
        "value_size": keys["v_head_dim"],
        "tie_embeddings": "all" if keys["tie_word_embeddings"] else "none",
        **_rope_options(keys),
    }


def _rope_options(keys: Keys) -> Options:
    """Options of rotary positions. YaRN's temperature is a factor of rotated keys and queries and,
    by the square of `mscale_all_dim`'s, of all logits.

    Raises:
      UserError: the scaling is not supported.
    """
    scaling = keys.get("rope_scaling")
    parameters = keys.get("rope_parameters")
    rope: Mapping[str, Any]
    rope = {"rope_theta": keys.get("rope_theta"), **(scaling or parameters or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    unknown = sorted(rope.keys() - _ROPE_KEYS)
    if unknown:
        raise UserError(
            f"config.json: rope_parameters has {unknown[0]} {short_repr(rope[unknown[0]])}; "
            f"supported are {', '.join(sorted(_ROPE_KEYS))}"
        )
    theta = {"rope_theta": float(rope["rope_theta"] or 10_000.0)}
    if kind == "default":
        return {**theta, "rope_scaling": "none"}
    if kind != "yarn":
        raise UserError(f"config.json: rope_type is {kind!r}; supported are default, yarn")
    factor, fast, slow, rotated, all_logits = (rope.get(key, _YARN[key]) for key in _YARN)
    by_all = _mscale(factor, all_logits)
    attention_factor = _mscale(factor, 1.0)
    if rotated and all_logits:  # as in transformers, it takes both to change the factor
        attention_factor = _mscale(factor, rotated) / by_all
    size = keys["qk_nope_head_dim"] + keys["qk_rope_head_dim"]
    original = rope.get("original_max_position_embeddings") or keys["max_position_embeddings"]
    return {
        **theta,
        "rope_scaling": "yarn",
        "rope_factor": float(factor),
        "rope_original_length": original,
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
        "tie_word_embeddings": model.tie_embeddings in ("all", "target"),
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
    tied = ["lm_head.weight"] if model.tie_embeddings in ("all", "target") else []
    yield map_table("embedding/table", "model.embed_tokens.weight", *tied)
    yield map_table("projection/table", "lm_head.weight")
    yield from map_norm("decoder/final_norm", "model.norm")
    for i in range(model.num_layers):
        path = f"decoder/layer_{i}"
        prefix = f"model.layers.{i}"
        yield from _map_attention(model, f"{path}/self_attention", f"{prefix}.self_attn")
        yield from _map_feed_forward(model.of_layer(i), f"{path}/feed_forward", f"{prefix}.mlp")
        first_norm = f"{path}/self_attention_residual/norm_before"
        second_norm = f"{path}/feed_forward_residual/norm_before"
        yield from map_norm(first_norm, f"{prefix}.input_layernorm")
        yield from map_norm(second_norm, f"{prefix}.post_attention_layernorm")


def _map_attention(model: TransformerConfig, path: str, prefix: str) -> Iterator[TensorMapping]:
    latent = model.options_of(LatentOptions)
    yield from map_linear(f"{path}/query", f"{prefix}.q_proj")
    yield from map_linear(f"{path}/query_down", f"{prefix}.q_a_proj")
    yield from map_norm(f"{path}/norm_query", f"{prefix}.q_a_layernorm")
    yield from map_linear(f"{path}/query_up", f"{prefix}.q_b_proj")
    down = (f"{path}/latent", f"{path}/rotary")
    sizes = (latent.kv_rank, latent.rotary_size)
    yield from map_joined(down, sizes, f"{prefix}.kv_a_proj_with_mqa")
    yield from map_norm(f"{path}/norm_latent", f"{prefix}.kv_a_layernorm")
    up = (f"{path}/key_up", f"{path}/value_up")
    sizes = (model.d_k, model.d_v)
    yield from map_joined(up, sizes, f"{prefix}.kv_b_proj", heads=model.num_heads)
    yield from map_linear(f"{path}/output", f"{prefix}.o_proj")


def _map_feed_forward(model: TransformerConfig, path: str, prefix: str) -> Iterator[TensorMapping]:
    if model.feed_forward == "dense":
        for ours, name in _MATRICES.items():
            yield from map_linear(f"{path}/{ours}", f"{prefix}.{name}")
        return
    yield from map_linear(f"{path}/router", f"{prefix}.gate")
    for ours, name in _MATRICES.items():
        yield from map_linear(f"{path}/shared/{ours}", f"{prefix}.shared_experts.{name}")
        for expert in range(model.options_of(ExpertsOptions).num_experts):
            tensor = f"{prefix}.experts.{expert}.{name}.weight"
            yield TensorMapping(f"{path}/expert_{ours}/{expert}", (tensor,))


DEEPSEEK_V2 = Family(
    model_type="deepseek_v2",
    architecture="decoder_only",
    tasks=dict.fromkeys(("DeepseekV2ForCausalLM", "DeepseekV2Model"), "language_modeling"),
    fields=_FIELDS,
    fixed_fields=_FIXED,
    mappings=_mappings,
    to_options=_to_options,
    to_keys=_to_keys,
    defaults={
        **{"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False},
        **{"hidden_act": "silu", "attention_dropout": 0.0, "max_position_embeddings": 2048},
        **{"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128},
        **{"qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 0},
        **{"n_routed_experts": 64, "n_shared_experts": 2, "routed_scaling_factor": 1.0},
        **{"moe_intermediate_size": 1407, "intermediate_size": 11_008},
        "num_experts_per_tok": 6,  # DeepSeek-V2's; the class has null, with which none can run
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
    prefix="model.",
    ignored_tensors=r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    activation_key="hidden_act",
)

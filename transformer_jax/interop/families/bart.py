# SPDX-License-Identifier: Apache-2.0
"""BART (Lewis et al. 2020), mBART (Liu et al. 2020), Marian (Junczys-Dowmunt et al. 2018) and
PEGASUS (Zhang et al. 2020). They differ in positions and in the placement of norms."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.interop.families.base import Family, Head, Keys, Options, shared_value
from transformer_jax.interop.tensor_mapping import (
    TensorMapping,
    map_attention,
    map_linear,
    map_norm,
    map_table,
)
from transformer_jax.nn.config import TransformerConfig

_SIDES = ("encoder", "decoder")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")

_FIELDS = {
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "activation_dropout": "feed_forward_dropout_rate",
    "scale_embedding": "scale_embeddings",
    "max_position_embeddings": "max_length",
}
_FIXED = {"norm": "layer", "norm_epsilon": 1e-5, "attention_bias": "all", "logits_bias": True}
_DEFAULTS: dict[str, Any] = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "max_position_embeddings": 1024,
}
_BART_IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_REQUIRED = {"tie_word_embeddings": True}
_NEUTRAL = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
_NO_EFFECT = (
    *("num_hidden_layers", "classifier_dropout", "classif_dropout", "add_bias_logits"),
    *("normalize_embedding", "extra_pos_embeddings", "static_position_embeddings"),
)
_POSITION_OFFSET = 2  # two unused rows; fairseq counted positions from pad_token_id + 1


def _to_options(keys: Keys) -> dict[str, Any]:
    return {
        "num_heads": shared_value(keys, "encoder_attention_heads", "decoder_attention_heads"),
        "d_ff": shared_value(keys, "encoder_ffn_dim", "decoder_ffn_dim"),
        "tie_embeddings": "all",
    }


def _to_keys(model: TransformerConfig) -> dict[str, Any]:
    sides = {f"{side}_attention_heads": model.num_heads for side in _SIDES}
    sides |= {f"{side}_ffn_dim": model.d_ff for side in _SIDES}
    return {**sides, "is_encoder_decoder": True, "tie_word_embeddings": True}


def _to_options_marian(keys: Keys) -> Options:
    tie = "all" if keys.get("share_encoder_decoder_embeddings", True) else "target"
    return {**_to_options(keys), "tie_embeddings": tie}


def _to_keys_marian(model: TransformerConfig) -> Keys:
    shared = model.tie_embeddings == "all"
    return {**_to_keys(model), "share_encoder_decoder_embeddings": shared}


def _mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    target = ["model.decoder.embed_tokens.weight", "lm_head.weight"]
    source = ["model.encoder.embed_tokens.weight"]
    if model.tie_embeddings == "all":
        target = ["model.shared.weight", *target, *source]
    yield map_table("target_embedding/table", *target)
    yield map_table("source_embedding/table", *source)
    yield TensorMapping("logits_bias", ("final_logits_bias",), leading_axes=1)
    for side, name in zip(_SIDES, ("source", "target"), strict=True):
        yield map_table(f"{name}_positions/table", f"model.{side}.embed_positions.weight")
        yield from map_norm(f"{name}_norm", f"model.{side}.layernorm_embedding")
        yield from map_norm(f"{side}/final_norm", f"model.{side}.layer_norm")
    for i in range(model.num_encoder_layers):
        yield from _map_layer(f"encoder/layer_{i}", f"model.encoder.layers.{i}")
    for i in range(model.num_decoder_layers):
        path = f"decoder/layer_{i}"
        prefix = f"model.decoder.layers.{i}"
        yield from _map_layer(path, prefix)
        yield from map_attention(f"{path}/cross_attention", f"{prefix}.encoder_attn", _ATTENTION)
        yield from _map_norms(f"{path}/cross_attention", f"{prefix}.encoder_attn_layer_norm")


def _map_classifier() -> Iterator[TensorMapping]:
    yield from map_linear("pooler", "classification_head.dense")
    yield from map_linear("classifier", "classification_head.out_proj")


def _sinusoid_tables(model: TransformerConfig) -> dict[str, np.ndarray]:
    """Sinusoid tables of the encoder and decoder."""
    pair = np.arange(0, model.d_model, 2) / model.d_model
    angles = np.arange(model.max_length)[:, None] / 10_000.0**pair
    waves = [np.sin(angles), np.cos(angles)[:, : model.d_model // 2]]
    rows = np.concatenate(waves, axis=1).astype(np.float32)
    return {f"model.{side}.embed_positions.weight": rows for side in _SIDES}


def _map_layer(path: str, prefix: str) -> Iterator[TensorMapping]:
    yield from map_attention(f"{path}/self_attention", f"{prefix}.self_attn", _ATTENTION)
    yield from _map_norms(f"{path}/self_attention", f"{prefix}.self_attn_layer_norm")
    yield from map_linear(f"{path}/feed_forward/inner", f"{prefix}.fc1")
    yield from map_linear(f"{path}/feed_forward/outer", f"{prefix}.fc2")
    yield from _map_norms(f"{path}/feed_forward", f"{prefix}.final_layer_norm")


def _map_norms(sublayer: str, name: str) -> Iterator[TensorMapping]:
    """Norm before or after a sublayer: the model has one of the two."""
    yield from map_norm(f"{sublayer}_residual/norm_before", name)
    yield from map_norm(f"{sublayer}_residual/norm_after", name)


def _family(
    model_type: str, name: str, task: str, fixed: Options, ids: Keys, **others: Any
) -> Family:
    options: dict[str, Any] = {"required": _REQUIRED, "neutral": _NEUTRAL, "tasks": {name: task}}
    return Family(
        model_type=model_type,
        architecture="encoder_decoder",
        fields=_FIELDS,
        fixed_fields={**_FIXED, **fixed},
        mappings=_mappings,
        defaults=_DEFAULTS | dict(ids),
        activation_key="activation_function",
        no_effect=_NO_EFFECT,
        **(options | others),
    )


_LEARNED = {"positions": "learned", "position_offset": _POSITION_OFFSET, "embedding_norm": True}
_SINUSOIDAL = {"positions": "sinusoidal_halves"}
_PRE_NORM = _NEUTRAL | {"normalize_before": True, "add_final_layer_norm": True}
_SINUSOID_TABLES = r"model\.(en|de)coder\.embed_positions\.weight"

MARIAN = _family(
    "marian",
    "MarianMTModel",
    "translation",
    _SINUSOIDAL | {"norm_placement": "post"},
    {"pad_token_id": 58_100, "eos_token_id": 0, "decoder_start_token_id": 58_100},
    to_options=_to_options_marian,
    to_keys=_to_keys_marian,
    ignored_tensors=_SINUSOID_TABLES,
    required=_REQUIRED | {"static_position_embeddings": True, "normalize_before": False},
    neutral=_NEUTRAL | {"add_final_layer_norm": False},
)
PEGASUS = _family(
    "pegasus",
    "PegasusForConditionalGeneration",
    "seq2seq",
    _SINUSOIDAL | {"norm_placement": "pre"},
    {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    neutral=_PRE_NORM,
    to_options=_to_options,
    to_keys=_to_keys,
    constant_tensors=_sinusoid_tables,
    ignored_tensors=_SINUSOID_TABLES,
)
BART = _family(
    "bart",
    "BartForConditionalGeneration",
    "seq2seq",
    _LEARNED | {"norm_placement": "post"},
    _BART_IDS | {"decoder_start_token_id": 2, "num_labels": 3},
    tasks={
        "BartForConditionalGeneration": "seq2seq",
        "BartModel": "seq2seq",
        "BartForSequenceClassification": "classification",
    },
    heads={"BartForSequenceClassification": Head(_map_classifier, {"logits_bias": False})},
    prefix="model.",
    to_options=_to_options,
    to_keys=_to_keys,
    ignored_tensors=r"model\.(en|de)coder\.version",
    required=_REQUIRED | {"normalize_before": False, "add_final_layer_norm": False},
)
MBART = _family(
    "mbart",
    "MBartForConditionalGeneration",
    "translation",
    _LEARNED | {"norm_placement": "pre"},
    _BART_IDS,
    neutral=_PRE_NORM,
    to_options=_to_options,
    to_keys=_to_keys,
    ignored_tensors=r"model\.(en|de)coder\.version",
)

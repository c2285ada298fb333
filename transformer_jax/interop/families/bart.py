"""BART (Lewis et al. 2020) and its relatives: mBART (Liu et al. 2020), Marian (Junczys-Dowmunt et
al. 2018) and PEGASUS (Zhang et al. 2020). They differ in positions and in where norms stand."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.interop.families.base import Family, Keys, Options, alike
from transformer_jax.interop.tensor_mapping import TensorMapping, attention, linear, norm, table
from transformer_jax.nn.config import TransformerConfig

_SIDES = ("encoder", "decoder")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")

_SAME = {
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
    "activation_dropout": "feed_forward_dropout_rate",
    "scale_embedding": "scale_embeddings",
}
_FIXED = {
    "norm": "layer",
    "norm_epsilon": 1e-5,
    "attention_bias": "all",
    "logits_bias": True,
}
_DEFAULTS: dict[str, Any] = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "max_position_embeddings": 1024,
}
_POSITION_OFFSET = 2


def _read(keys: Keys) -> dict[str, Any]:
    return {
        "num_heads": alike(keys, "encoder_attention_heads", "decoder_attention_heads"),
        "d_ff": alike(keys, "encoder_ffn_dim", "decoder_ffn_dim"),
        "tie_embeddings": "all",
    }


def _written(model: TransformerConfig) -> dict[str, Any]:
    sides = {f"{side}_attention_heads": model.num_heads for side in _SIDES}
    sides |= {f"{side}_ffn_dim": model.d_ff for side in _SIDES}
    return {**sides, "is_encoder_decoder": True, "tie_word_embeddings": True}


def _read_learned(keys: Keys) -> Options:
    return {**_read(keys), "max_length": keys["max_position_embeddings"]}


def _written_learned(model: TransformerConfig) -> Keys:
    return {**_written(model), "max_position_embeddings": model.max_length}


def _read_marian(keys: Keys) -> Options:
    tie = "all" if keys.get("share_encoder_decoder_embeddings", True) else "target"
    return {**_read(keys), "tie_embeddings": tie}


def _written_marian(model: TransformerConfig) -> Keys:
    shared = model.tie_embeddings == "all"
    return {**_written(model), "share_encoder_decoder_embeddings": shared}


def _links(model: TransformerConfig) -> Iterator[TensorMapping]:
    target = ["model.decoder.embed_tokens.weight", "lm_head.weight"]
    source = ["model.encoder.embed_tokens.weight"]
    if model.tie_embeddings == "all":
        target = ["model.shared.weight", *target, *source]
    yield table("target_embedding/table", *target)
    yield table("source_embedding/table", *source)
    yield TensorMapping("logits_bias", ("final_logits_bias",), leading=1)
    for side, name in zip(_SIDES, ("source", "target"), strict=True):
        yield table(f"{name}_positions/table", f"model.{side}.embed_positions.weight")
        yield from norm(f"{name}_norm", f"model.{side}.layernorm_embedding")
        yield from norm(f"{side}/final_norm", f"model.{side}.layer_norm")
    for i in range(model.num_encoder_layers):
        yield from _layer(f"encoder/layer_{i}", f"model.encoder.layers.{i}")
    for i in range(model.num_decoder_layers):
        ours, theirs = f"decoder/layer_{i}", f"model.decoder.layers.{i}"
        yield from _layer(ours, theirs)
        yield from attention(f"{ours}/cross_attention", f"{theirs}.encoder_attn", _ATTENTION)
        yield from _norms(f"{ours}/cross_attention", f"{theirs}.encoder_attn_layer_norm")


def _tables_of_sines(model: TransformerConfig) -> dict[str, np.ndarray]:
    """One row for each position, of which PEGASUS takes 1024 unless its config says otherwise."""
    pair = np.arange(0, model.d_model, 2) / model.d_model
    angles = np.arange(_DEFAULTS["max_position_embeddings"])[:, None] / 10_000.0**pair
    waves = [np.sin(angles), np.cos(angles)[:, : model.d_model // 2]]
    rows = np.concatenate(waves, axis=1).astype(np.float32)
    return {f"model.{side}.embed_positions.weight": rows for side in _SIDES}


def _layer(ours: str, theirs: str) -> Iterator[TensorMapping]:
    yield from attention(f"{ours}/self_attention", f"{theirs}.self_attn", _ATTENTION)
    yield from _norms(f"{ours}/self_attention", f"{theirs}.self_attn_layer_norm")
    yield from linear(f"{ours}/feed_forward/inner", f"{theirs}.fc1")
    yield from linear(f"{ours}/feed_forward/outer", f"{theirs}.fc2")
    yield from _norms(f"{ours}/feed_forward", f"{theirs}.final_layer_norm")


def _norms(sublayer: str, theirs: str) -> Iterator[TensorMapping]:
    """One of the two is there, by the placement of norms."""
    yield from norm(f"{sublayer}_residual/norm_before", theirs)
    yield from norm(f"{sublayer}_residual/norm_after", theirs)


def _family(model_type: str, name: str, task: str, fixed: Options, **others: Any) -> Family:
    return Family(
        model_type=model_type,
        architecture="encoder_decoder",
        tasks={name: task},
        same=_SAME,
        fixed={**_FIXED, **fixed},
        links=_links,
        defaults=_DEFAULTS,
        activation="activation_function",
        **others,
    )


_LEARNED = {"positions": "learned", "position_offset": _POSITION_OFFSET, "embedding_norm": True}
_SINES = {"positions": "sinusoidal_halves"}
_TABLES_OF_SINES = r"model\.(en|de)coder\.embed_positions\.weight"

MARIAN = _family(
    "marian",
    "MarianMTModel",
    "translation",
    _SINES | {"norm_placement": "post"},
    read=_read_marian,
    written=_written_marian,
    left_out=_TABLES_OF_SINES,
    required={"static_position_embeddings": True, "normalize_before": False},
)
PEGASUS = _family(
    "pegasus",
    "PegasusForConditionalGeneration",
    "seq2seq",
    _SINES | {"norm_placement": "pre"},
    read=_read,
    written=_written,
    computed=_tables_of_sines,
    left_out=_TABLES_OF_SINES,
)
BART = _family(
    "bart",
    "BartForConditionalGeneration",
    "seq2seq",
    _LEARNED | {"norm_placement": "post"},
    read=_read_learned,
    written=_written_learned,
    left_out=r"model\.(en|de)coder\.version",
    required={"normalize_before": False, "add_final_layer_norm": False},
)
MBART = _family(
    "mbart",
    "MBartForConditionalGeneration",
    "translation",
    _LEARNED | {"norm_placement": "pre"},
    read=_read_learned,
    written=_written_learned,
    left_out=r"model\.(en|de)coder\.version",
)

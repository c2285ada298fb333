# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoders: BART (Lewis et al. 2020), mBART (Liu et al. 2020), Marian (Junczys-Dowmunt et
al. 2018) and PEGASUS (Zhang et al. 2020), which differ in positions and in the placement of norms;
T5 (Raffel et al. 2020), T5 v1.1 (Shazeer 2020) and Flan-T5 (Chung et al. 2022); T5Gemma (Zhang et
al. 2025), whose stacks are those of Gemma 2."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.interop.families import base, decoders
from transformer_jax.interop.families.base import Family, Fields, Head, Keys, Options, TensorMapping
from transformer_jax.nn.config import TransformerConfig

_SIDES = ("encoder", "decoder")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
# A model has its norms before or after all sublayers.
_LAYER = {
    **base.attention_modules("self_attention", "self_attn", _ATTENTION),
    "self_attention_residual/norm_before": "self_attn_layer_norm",
    "self_attention_residual/norm_after": "self_attn_layer_norm",
    "feed_forward/inner": "fc1",
    "feed_forward/outer": "fc2",
    "feed_forward_residual/norm_before": "final_layer_norm",
    "feed_forward_residual/norm_after": "final_layer_norm",
}
_DECODER_LAYER = {
    **_LAYER,
    **base.attention_modules("cross_attention", "encoder_attn", _ATTENTION),
    "cross_attention_residual/norm_before": "encoder_attn_layer_norm",
    "cross_attention_residual/norm_after": "encoder_attn_layer_norm",
}

_FIELDS: Fields = {
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "dropout": ("dropout_rate", 0.1),
    "attention_dropout": ("attention_dropout_rate", 0.0),
    "activation_dropout": ("feed_forward_dropout_rate", 0.0),
    "scale_embedding": ("scale_embeddings", False),
    "max_position_embeddings": ("max_length", 1024),
    "activation_function": "activation",
    **{f"{side}_attention_heads": "num_heads" for side in _SIDES},
    **{f"{side}_ffn_dim": "d_ff" for side in _SIDES},
}
_FIXED = {"norm": "layer", "norm_epsilon": 1e-5, "attention_bias": "all", "logits_bias": True}
_BART_IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_REQUIRED = {"tie_word_embeddings": True}
_NEUTRAL = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
_NO_EFFECT = (
    *("num_hidden_layers", "classifier_dropout", "classif_dropout", "add_bias_logits"),
    *("normalize_embedding", "extra_pos_embeddings", "static_position_embeddings"),
)
_POSITION_OFFSET = 2  # two unused rows; fairseq counted positions from pad_token_id + 1


def _to_options(keys: Keys) -> dict[str, Any]:
    """Options of both stacks. Raises UserError if their sizes differ."""
    for name in ("attention_heads", "ffn_dim"):
        encoder, decoder = (keys[f"{side}_{name}"] for side in _SIDES)
        if encoder != decoder:
            raise UserError(
                f"config.json: encoder_{name} {encoder!r} and decoder_{name} {decoder!r} differ; "
                "models here have the same value for both"
            )
    return {"tie_embeddings": "all"}


def _to_options_marian(keys: Keys) -> Options:
    tie = "all" if keys.get("share_encoder_decoder_embeddings", True) else "target"
    return {**_to_options(keys), "tie_embeddings": tie}


def _mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    target = ["model.decoder.embed_tokens.weight", "lm_head.weight"]
    source = ["model.encoder.embed_tokens.weight"]
    if model.tie_embeddings == "all":
        target = ["model.shared.weight", *target, *source]
    yield TensorMapping("target_embedding/table", tuple(target))
    yield TensorMapping("source_embedding/table", tuple(source))
    yield TensorMapping("logits_bias", ("final_logits_bias",), leading_axes=1)
    for side, name in zip(_SIDES, ("source", "target"), strict=True):
        table = f"model.{side}.embed_positions.weight"
        yield TensorMapping(f"{name}_positions/table", (table,))
        norms = {f"{name}_norm": "layernorm_embedding", f"{side}/final_norm": "layer_norm"}
        yield from base.map_modules("", f"model.{side}.", norms)
    encoder_layers = model.num_encoder_layers
    yield from base.map_layers("encoder", "model.encoder.layers", encoder_layers, _LAYER)
    decoder_layers = model.num_decoder_layers
    yield from base.map_layers("decoder", "model.decoder.layers", decoder_layers, _DECODER_LAYER)


def _sinusoid_tables(model: TransformerConfig) -> dict[str, np.ndarray]:
    """Sinusoid tables of the encoder and decoder."""
    pair = np.arange(0, model.d_model, 2) / model.d_model
    angles = np.arange(model.max_length)[:, None] / 10_000.0**pair
    waves = [np.sin(angles), np.cos(angles)[:, : model.d_model // 2]]
    rows = np.concatenate(waves, axis=1).astype(np.float32)
    return {f"model.{side}.embed_positions.weight": rows for side in _SIDES}


_family = functools.partial(
    Family,
    architecture="encoder_decoder",
    fields=_FIELDS,
    mappings=_mappings,
    to_options=_to_options,
    required=_REQUIRED,
    neutral=_NEUTRAL,
    no_effect=_NO_EFFECT,
)
_LEARNED = {
    **_FIXED,
    "positions": "learned",
    "position_offset": _POSITION_OFFSET,
    "embedding_norm": True,
}
_SINUSOIDAL = {**_FIXED, "positions": "sinusoidal_halves"}
_PRE_NORM = _NEUTRAL | {"normalize_before": True, "add_final_layer_norm": True}
_SINUSOID_TABLES = r"model\.(en|de)coder\.embed_positions\.weight"

MARIAN = _family(
    model_type="marian",
    tasks={"MarianMTModel": "translation"},
    fixed_fields=_SINUSOIDAL | {"norm_placement": "post"},
    defaults={"pad_token_id": 58_100, "eos_token_id": 0, "decoder_start_token_id": 58_100},
    to_options=_to_options_marian,
    to_keys=lambda model: {"share_encoder_decoder_embeddings": model.tie_embeddings == "all"},
    ignored_tensors=_SINUSOID_TABLES,
    required=_REQUIRED | {"static_position_embeddings": True, "normalize_before": False},
    neutral=_NEUTRAL | {"add_final_layer_norm": False},
)
PEGASUS = _family(
    model_type="pegasus",
    tasks={"PegasusForConditionalGeneration": "seq2seq"},
    fixed_fields=_SINUSOIDAL | {"norm_placement": "pre"},
    defaults={"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
    neutral=_PRE_NORM,
    constant_tensors=_sinusoid_tables,
    ignored_tensors=_SINUSOID_TABLES,
)
BART = _family(
    model_type="bart",
    tasks={
        "BartForConditionalGeneration": "seq2seq",
        "BartModel": "seq2seq",
        "BartForSequenceClassification": "classification",
    },
    fixed_fields=_LEARNED | {"norm_placement": "post"},
    defaults=_BART_IDS | {"decoder_start_token_id": 2, "num_labels": 3},
    heads={
        "classification": Head(
            {"pooler": "classification_head.dense", "classifier": "classification_head.out_proj"},
            {"logits_bias": False},
        )
    },
    prefix="model.",
    ignored_tensors=r"model\.(en|de)coder\.version",
    required=_REQUIRED | {"normalize_before": False, "add_final_layer_norm": False},
)
MBART = _family(
    model_type="mbart",
    tasks={"MBartForConditionalGeneration": "translation"},
    fixed_fields=_LEARNED | {"norm_placement": "pre"},
    defaults=_BART_IDS,
    neutral=_PRE_NORM,
    ignored_tensors=r"model\.(en|de)coder\.version",
)


def _to_options_t5(keys: Keys) -> Options:
    kind = keys["feed_forward_proj"]
    gated = kind.startswith("gated-")
    name = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
    # Models that scale no outputs (v1.1, Flan) have a projection of their own. transformers 4 wrote
    # `tie_word_embeddings: false` for them; version 5 writes true, and `scale_decoder_outputs`.
    scaled = keys.get("scale_decoder_outputs")
    if scaled is None:
        scaled = keys["tie_word_embeddings"]
    tied = keys["tie_word_embeddings"] and scaled
    return {
        "activation": base.read_option(
            {"feed_forward_proj": name}, "feed_forward_proj", "activation"
        ),
        "gated_feed_forward": gated,
        "key_size": keys["d_kv"],
        "value_size": keys["d_kv"],
        "num_decoder_layers": keys.get("num_decoder_layers") or keys["num_layers"],
        "scale_logits": scaled,
        "tie_embeddings": "all" if tied else "inputs",
    }


def _to_keys_t5(model: TransformerConfig) -> Keys:
    name = base.key_value("activation", model.activation)
    if model.gated_feed_forward:
        name = "gated-gelu" if name == "gelu_new" else f"gated-{name}"
    return {
        "feed_forward_proj": name,
        "d_kv": model.d_k,
        "relative_attention_max_distance": model.max_distance or 128,
        "num_decoder_layers": model.num_decoder_layers,
        "scale_decoder_outputs": model.scale_logits,
        "tie_word_embeddings": model.tie_embeddings == "all",
    }


def _mappings_t5(model: TransformerConfig) -> Iterator[TensorMapping]:
    copies = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    if model.tie_embeddings == "all":
        copies.append("lm_head.weight")
    yield TensorMapping("target_embedding/table", tuple(copies))
    yield TensorMapping("projection/table", ("lm_head.weight",))
    stacks = (
        ("encoder", "source", model.num_encoder_layers, 1),
        ("decoder", "target", model.num_decoder_layers, 2),
    )
    for stack, side, layers, feed_forward_index in stacks:
        biases = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield TensorMapping(f"{side}_positions/bucket_biases", (biases,))
        yield from base.map_modules("", "", {f"{stack}/final_norm": f"{stack}.final_layer_norm"})
        names = _t5_layer(feed_forward_index, model.gated_feed_forward)
        yield from base.map_layers(stack, f"{stack}.block", layers, names)


def _t5_layer(index: int, gated: bool) -> dict[str, str]:
    """Modules of a layer whose feed-forward sublayer is number `index`."""
    matrices = {"inner": "wi_1", "gate": "wi_0"} if gated else {"inner": "wi"}
    matrices["outer"] = "wo"
    return {
        **base.attention_modules("self_attention", "layer.0.SelfAttention", "qkvo"),
        "self_attention_residual/norm_before": "layer.0.layer_norm",
        **base.attention_modules("cross_attention", "layer.1.EncDecAttention", "qkvo"),
        "cross_attention_residual/norm_before": "layer.1.layer_norm",
        "feed_forward_residual/norm_before": f"layer.{index}.layer_norm",
        **{
            f"feed_forward/{ours}": f"layer.{index}.DenseReluDense.{name}"
            for ours, name in matrices.items()
        },
    }


T5 = Family(
    model_type="t5",
    architecture="encoder_decoder",
    tasks={"T5ForConditionalGeneration": "seq2seq"},
    fields={
        "d_model": "d_model",
        "d_ff": "d_ff",
        "num_layers": "num_encoder_layers",
        "num_heads": "num_heads",
        "relative_attention_num_buckets": ("num_buckets", 32),
        "relative_attention_max_distance": ("max_distance", 128),
        "dropout_rate": ("dropout_rate", 0.1),
        "layer_norm_epsilon": ("norm_epsilon", 1e-6),
    },
    fixed_fields={
        "norm": "rms",
        "norm_placement": "pre",
        "positions": "t5",
        "attention_scale": 1.0,
        "attention_bias": "none",
        "feed_forward_bias": False,
        "scale_embeddings": False,
    },
    to_options=_to_options_t5,
    to_keys=_to_keys_t5,
    mappings=_mappings_t5,
    defaults={
        **{"pad_token_id": 0, "eos_token_id": 1},
        "d_kv": 64,
        "num_decoder_layers": None,
        "tie_word_embeddings": True,
        "feed_forward_proj": "relu",
    },
    no_effect=("dense_act_fn", "is_gated_act", "classifier_dropout", "n_positions"),
    ignored_tensors=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)


def _to_options_t5gemma(keys: Keys) -> Options:
    """Options of both stacks. In an encoder transformers counts a window of w tokens on either
    side, here it is one of w + 1.

    Raises:
      UserError: the stacks differ in more than their number of layers.
    """
    encoder, decoder = (decoders.GEMMA2.options(keys[side]) for side in _SIDES)
    depths = {
        "num_encoder_layers": encoder.pop("num_layers"),
        "num_decoder_layers": decoder.pop("num_layers"),
    }
    for field in sorted({*encoder, *decoder}):
        if encoder.get(field) != decoder.get(field):
            raise UserError(
                f"config.json: encoder and decoder differ in {field} ({encoder.get(field)!r} and "
                f"{decoder.get(field)!r}); models here have the same value for both"
            )
    if decoder.get("attention_window") is not None:
        decoder["encoder_window"] = decoder["attention_window"] + 1
    return {
        **decoder,
        **depths,
        "architecture": "encoder_decoder",
        "dropout_rate": keys["dropout_rate"],
        "feed_forward_dropout_rate": keys["dropout_rate"],
        "attention_dropout_rate": keys["attention_dropout"],
        "tie_embeddings": "target" if keys["tie_word_embeddings"] else "none",
    }


def _to_keys_t5gemma(model: TransformerConfig) -> Keys:
    depths = (model.num_encoder_layers, model.num_decoder_layers)
    sizes = (model.source_vocab_size, model.target_vocab_size)
    stacks = {
        side: {
            **decoders.GEMMA2.keys(dataclasses.replace(model, num_layers=layers)),
            "model_type": "t5_gemma_module",
            "vocab_size": size,
        }
        for side, layers, size in zip(_SIDES, depths, sizes, strict=True)
    }
    return {
        **stacks,
        "dropout_rate": model.dropout_rate,
        "attention_dropout": model.attention_dropout_rate,
        "tie_word_embeddings": model.tie_embeddings == "target",
    }


_T5GEMMA_LAYER = {
    **decoders.LAYER,
    **{
        f"{sublayer}_residual/norm_{place}": f"{prefix}_{name}_layernorm"
        for sublayer, name in (
            ("self_attention", "self_attn"),
            ("cross_attention", "cross_attn"),
            ("feed_forward", "feedforward"),
        )
        for place, prefix in (("before", "pre"), ("after", "post"))
    },
    **base.attention_modules("cross_attention", "cross_attn", decoders.PROJECTIONS),
}


def _mappings_t5gemma(model: TransformerConfig) -> Iterator[TensorMapping]:
    head = ("lm_head.out_proj.weight",)
    tied = head if model.tie_embeddings == "target" else ()
    yield TensorMapping("source_embedding/table", ("model.encoder.embed_tokens.weight",))
    yield TensorMapping("target_embedding/table", ("model.decoder.embed_tokens.weight", *tied))
    yield TensorMapping("projection/table", head)
    depths = (model.num_encoder_layers, model.num_decoder_layers)
    for stack, layers in zip(_SIDES, depths, strict=True):
        yield from base.map_modules("", "", {f"{stack}/final_norm": f"model.{stack}.norm"})
        yield from base.map_layers(stack, f"model.{stack}.layers", layers, _T5GEMMA_LAYER)


T5GEMMA = Family(
    model_type="t5gemma",
    architecture="encoder_decoder",
    tasks={"T5GemmaForConditionalGeneration": "seq2seq"},
    fields={},
    fixed_fields={},
    to_options=_to_options_t5gemma,
    to_keys=_to_keys_t5gemma,
    mappings=_mappings_t5gemma,
    defaults={
        **{"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "decoder_start_token_id": 2},
        "dropout_rate": 0.0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
    },
    no_effect=("classifier_dropout_rate",),
    prefix="model.",
)

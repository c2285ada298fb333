# SPDX-License-Identifier: Apache-2.0
"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), its pre-norm variant (Ott et al. 2019), and
DistilBERT (Sanh et al. 2019). XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020)
are RoBERTa with other vocabularies."""

from collections.abc import Iterator
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families.base import Family, Head, Keys, Options
from transformer_jax.interop.tensor_mapping import (
    TensorMapping,
    map_attention,
    map_linear,
    map_norm,
    map_table,
)
from transformer_jax.nn.config import TransformerConfig

_FIXED = {
    "norm": "layer",
    "norm_placement": "post",
    "positions": "learned",
    "attention_bias": "all",
    "embedding_norm": True,
    "scale_embeddings": False,
    "tie_embeddings": "all",
}
_FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "layer_norm_eps": "norm_epsilon",
    "type_vocab_size": "num_token_types",
}
_DEFAULTS = {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
}
_ROBERTA_DEFAULTS = _DEFAULTS | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_POOLER = tuple(
    f"pooler_{name}"
    for name in ("fc_size", "num_attention_heads", "num_fc_layers", "size_per_head", "type")
)
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def _to_options_roberta(keys: Keys) -> Options:
    """Position options. Rows of the table up to pad_token_id are unused."""
    if keys["pad_token_id"] is None:
        raise UserError("config.json: pad_token_id is None, and positions are counted from it")
    offset = keys["pad_token_id"] + 1
    return {"max_length": keys["max_position_embeddings"] - offset, "position_offset": offset}


def _to_keys_roberta(model: TransformerConfig) -> Keys:
    return {"max_position_embeddings": model.max_length + model.position_offset}


def _bert_mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    head = "cls.predictions"
    yield from _map_embeddings("bert.embeddings", f"{head}.decoder.weight")
    yield from map_linear("prediction_head/transform", f"{head}.transform.dense")
    yield from map_norm("prediction_head/norm", f"{head}.transform.LayerNorm")
    yield TensorMapping("prediction_head/bias", (f"{head}.bias", f"{head}.decoder.bias"))
    yield from map_linear("pooler", "bert.pooler.dense")
    yield from map_linear("classifier", "classifier")
    for i in range(model.num_layers):
        yield from _map_layer(f"encoder/layer_{i}", f"bert.encoder.layer.{i}")


def _roberta_mappings(model: TransformerConfig, name: str = "roberta") -> Iterator[TensorMapping]:
    yield from _map_embeddings(f"{name}.embeddings", "lm_head.decoder.weight")
    yield from map_linear("prediction_head/transform", "lm_head.dense")
    yield from map_norm("prediction_head/norm", "lm_head.layer_norm")
    yield TensorMapping("prediction_head/bias", ("lm_head.bias", "lm_head.decoder.bias"))
    yield from map_linear("pooler", "classifier.dense")
    yield from map_linear("classifier", "classifier.out_proj")
    yield from map_norm("encoder/final_norm", f"{name}.LayerNorm")
    for i in range(model.num_layers):
        yield from _map_layer(f"encoder/layer_{i}", f"{name}.encoder.layer.{i}")


def _pre_norm_mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    yield from _roberta_mappings(model, "roberta_prelayernorm")


def _map_embeddings(prefix: str, tied: str) -> Iterator[TensorMapping]:
    yield map_table("embedding/table", f"{prefix}.word_embeddings.weight", tied)
    yield map_table("input/positions/table", f"{prefix}.position_embeddings.weight")
    yield map_table("input/token_types", f"{prefix}.token_type_embeddings.weight")
    yield from map_norm("input/norm", f"{prefix}.LayerNorm")


def _map_layer(path: str, prefix: str) -> Iterator[TensorMapping]:
    attention_names = ("self.query", "self.key", "self.value", "output.dense")
    yield from map_attention(f"{path}/self_attention", f"{prefix}.attention", attention_names)
    yield from map_linear(f"{path}/feed_forward/inner", f"{prefix}.intermediate.dense")
    yield from map_linear(f"{path}/feed_forward/outer", f"{prefix}.output.dense")
    attention = f"{path}/self_attention_residual"
    feed_forward = f"{path}/feed_forward_residual"
    yield from map_norm(f"{attention}/norm_after", f"{prefix}.attention.output.LayerNorm")
    yield from map_norm(f"{feed_forward}/norm_after", f"{prefix}.output.LayerNorm")
    # Of the pre-norm variant.
    yield from map_norm(f"{attention}/norm_before", f"{prefix}.attention.LayerNorm")
    yield from map_norm(f"{feed_forward}/norm_before", f"{prefix}.intermediate.LayerNorm")


def _distilbert_mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    yield from _map_embeddings("distilbert.embeddings", "vocab_projector.weight")
    yield from map_linear("prediction_head/transform", "vocab_transform")
    yield from map_norm("prediction_head/norm", "vocab_layer_norm")
    yield TensorMapping("prediction_head/bias", ("vocab_projector.bias",))
    attention_names = ("q_lin", "k_lin", "v_lin", "out_lin")
    for i in range(model.num_layers):
        path = f"encoder/layer_{i}"
        prefix = f"distilbert.transformer.layer.{i}"
        yield from map_attention(f"{path}/self_attention", f"{prefix}.attention", attention_names)
        yield from map_linear(f"{path}/feed_forward/inner", f"{prefix}.ffn.lin1")
        yield from map_linear(f"{path}/feed_forward/outer", f"{prefix}.ffn.lin2")
        yield from map_norm(f"{path}/self_attention_residual/norm_after", f"{prefix}.sa_layer_norm")
        yield from map_norm(
            f"{path}/feed_forward_residual/norm_after", f"{prefix}.output_layer_norm"
        )


def _family(model_type: str, name: str, **others: Any) -> Family:
    options: dict[str, Any] = {
        "fields": _FIELDS,
        "fixed_fields": _FIXED,
        "defaults": _DEFAULTS,
        "required": _REQUIRED,
        "no_effect": ("directionality", *_POOLER),
        "activation_key": "hidden_act",
        "tasks": {
            f"{name}ForMaskedLM": "masked_lm",
            f"{name}ForPreTraining": "masked_lm",
            f"{name}Model": "masked_lm",
            f"{name}ForSequenceClassification": "classification",
            f"{name}ForTokenClassification": "tagging",
        },
        "prefix": f"{model_type}.",
    }
    return Family(model_type=model_type, architecture="encoder_only", **(options | others))


def _map_tagger() -> Iterator[TensorMapping]:
    yield from map_linear("classifier", "classifier")


def _map_distilbert_classifier() -> Iterator[TensorMapping]:
    yield from map_linear("pooler", "pre_classifier")
    yield from map_linear("classifier", "classifier")


BERT = _family(
    "bert",
    "Bert",
    fields=_FIELDS | {"max_position_embeddings": "max_length"},
    defaults=_DEFAULTS | {"pad_token_id": 0},
    mappings=_bert_mappings,
    ignored_tensors=r"bert\.embeddings\.position_ids|cls\.seq_relationship\..*|bert\.pooler\..*",
)
_REQUIRED_ROBERTA = _REQUIRED | {"hidden_act": "gelu"}
"""RoBERTa's head always uses the exact GELU. Here the head and the layers have the same
activation."""


def _roberta_family(model_type: str, name: str, prefix: str, **others: Any) -> Family:
    options: dict[str, Any] = {
        "defaults": _ROBERTA_DEFAULTS,
        "required": _REQUIRED_ROBERTA,
        "to_options": _to_options_roberta,
        "to_keys": _to_keys_roberta,
        "mappings": _roberta_mappings,
        "prefix": f"{prefix}.",
        "ignored_tensors": rf"{prefix}\.(embeddings\.position_ids|pooler\..*)",
        "heads": {f"{name}ForTokenClassification": Head(_map_tagger)},
    }
    return _family(model_type, name, **(options | others))


ROBERTA = _roberta_family("roberta", "Roberta", "roberta")
XLM_ROBERTA = _roberta_family("xlm-roberta", "XLMRoberta", "roberta")
CAMEMBERT = _roberta_family("camembert", "Camembert", "roberta")
ROBERTA_PRELAYERNORM = _roberta_family(
    "roberta-prelayernorm",
    "RobertaPreLayerNorm",
    "roberta_prelayernorm",
    fixed_fields=_FIXED | {"norm_placement": "pre"},
    mappings=_pre_norm_mappings,
)
DISTILBERT = _family(
    "distilbert",
    "DistilBert",
    heads={
        "DistilBertForTokenClassification": Head(_map_tagger),
        "DistilBertForSequenceClassification": Head(
            _map_distilbert_classifier, {"pooler_activation": "relu"}
        ),
    },
    fields={
        "dim": "d_model",
        "hidden_dim": "d_ff",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "max_position_embeddings": "max_length",
    },
    fixed_fields=_FIXED | {"norm_epsilon": 1e-12, "num_token_types": 0},
    mappings=_distilbert_mappings,
    activation_key="activation",
    defaults={
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
    },
    required={"tie_word_embeddings": True},
    neutral={"tie_weights_": True},
    no_effect=("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout"),
    ignored_tensors=r"distilbert\.embeddings\.position_ids",
)

"""BERT (Devlin et al. 2019) and its relatives: RoBERTa (Liu et al. 2019), also with norms before
its sublayers (Ott et al. 2019), and DistilBERT (Sanh et al. 2019)."""

from collections.abc import Iterator
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.families.base import Family, Keys, Options
from transformer_jax.interop.tensor_mapping import TensorMapping, attention, linear, norm, table
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
_SAME = {
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
    "pad_token_id": 1,
}
_REQUIRED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}


def _read_roberta(keys: Keys) -> Options:
    """The table begins with rows for positions up to that of padding."""
    if keys["pad_token_id"] is None:
        raise UserError("config.json: pad_token_id is None, and positions are counted from it")
    offset = keys["pad_token_id"] + 1
    return {"max_length": keys["max_position_embeddings"] - offset, "position_offset": offset}


def _written_roberta(model: TransformerConfig) -> Keys:
    return {"max_position_embeddings": model.max_length + model.position_offset}


def _bert_links(model: TransformerConfig) -> Iterator[TensorMapping]:
    head = "cls.predictions"
    yield from _embeddings("bert.embeddings", f"{head}.decoder.weight")
    yield from linear("prediction_head/transform", f"{head}.transform.dense")
    yield from norm("prediction_head/norm", f"{head}.transform.LayerNorm")
    yield TensorMapping("prediction_head/bias", (f"{head}.bias", f"{head}.decoder.bias"))
    yield from linear("pooler", "bert.pooler.dense")
    yield from linear("classifier", "classifier")
    for i in range(model.num_layers):
        yield from _layer(f"encoder/layer_{i}", f"bert.encoder.layer.{i}")


def _roberta_links(model: TransformerConfig, name: str = "roberta") -> Iterator[TensorMapping]:
    yield from _embeddings(f"{name}.embeddings", "lm_head.decoder.weight")
    yield from linear("prediction_head/transform", "lm_head.dense")
    yield from norm("prediction_head/norm", "lm_head.layer_norm")
    yield TensorMapping("prediction_head/bias", ("lm_head.bias", "lm_head.decoder.bias"))
    yield from linear("pooler", "classifier.dense")
    yield from linear("classifier", "classifier.out_proj")
    yield from norm("encoder/final_norm", f"{name}.LayerNorm")
    for i in range(model.num_layers):
        yield from _layer(f"encoder/layer_{i}", f"{name}.encoder.layer.{i}")


def _pre_norm_links(model: TransformerConfig) -> Iterator[TensorMapping]:
    yield from _roberta_links(model, "roberta_prelayernorm")


def _embeddings(theirs: str, tied: str) -> Iterator[TensorMapping]:
    yield table("embedding/table", f"{theirs}.word_embeddings.weight", tied)
    yield table("input/positions/table", f"{theirs}.position_embeddings.weight")
    yield table("input/token_types", f"{theirs}.token_type_embeddings.weight")
    yield from norm("input/norm", f"{theirs}.LayerNorm")


def _layer(ours: str, theirs: str) -> Iterator[TensorMapping]:
    of_attention = ("self.query", "self.key", "self.value", "output.dense")
    yield from attention(f"{ours}/self_attention", f"{theirs}.attention", of_attention)
    yield from linear(f"{ours}/feed_forward/inner", f"{theirs}.intermediate.dense")
    yield from linear(f"{ours}/feed_forward/outer", f"{theirs}.output.dense")
    first, second = f"{ours}/self_attention_residual", f"{ours}/feed_forward_residual"
    yield from norm(f"{first}/norm_after", f"{theirs}.attention.output.LayerNorm")
    yield from norm(f"{second}/norm_after", f"{theirs}.output.LayerNorm")
    yield from norm(f"{first}/norm_before", f"{theirs}.attention.LayerNorm")
    yield from norm(f"{second}/norm_before", f"{theirs}.intermediate.LayerNorm")


def _distilbert_links(model: TransformerConfig) -> Iterator[TensorMapping]:
    yield from _embeddings("distilbert.embeddings", "vocab_projector.weight")
    yield from linear("prediction_head/transform", "vocab_transform")
    yield from norm("prediction_head/norm", "vocab_layer_norm")
    yield TensorMapping("prediction_head/bias", ("vocab_projector.bias",))
    of_attention = ("q_lin", "k_lin", "v_lin", "out_lin")
    for i in range(model.num_layers):
        ours, theirs = f"encoder/layer_{i}", f"distilbert.transformer.layer.{i}"
        yield from attention(f"{ours}/self_attention", f"{theirs}.attention", of_attention)
        yield from linear(f"{ours}/feed_forward/inner", f"{theirs}.ffn.lin1")
        yield from linear(f"{ours}/feed_forward/outer", f"{theirs}.ffn.lin2")
        yield from norm(f"{ours}/self_attention_residual/norm_after", f"{theirs}.sa_layer_norm")
        yield from norm(f"{ours}/feed_forward_residual/norm_after", f"{theirs}.output_layer_norm")


def _family(model_type: str, name: str, **others: Any) -> Family:
    options: dict[str, Any] = {
        "same": _SAME,
        "fixed": _FIXED,
        "defaults": _DEFAULTS,
        "required": _REQUIRED,
        "activation": "hidden_act",
        "tasks": {
            f"{name}ForMaskedLM": "masked_lm",
            f"{name}ForPreTraining": "masked_lm",
            f"{name}Model": "masked_lm",
            f"{name}ForSequenceClassification": "classification",
        },
        "prefix": f"{model_type}.",
    }
    return Family(model_type=model_type, architecture="encoder_only", **(options | others))


BERT = _family(
    "bert",
    "Bert",
    same=_SAME | {"max_position_embeddings": "max_length"},
    links=_bert_links,
    left_out=r"bert\.embeddings\.position_ids|cls\.seq_relationship\..*|bert\.pooler\..*",
)
_EXACT = _REQUIRED | {"hidden_act": "gelu"}
"""The head of RoBERTa has the exact GELU, whatever its layers have; here they share one."""

ROBERTA = _family(
    "roberta",
    "Roberta",
    required=_EXACT,
    read=_read_roberta,
    written=_written_roberta,
    links=_roberta_links,
    left_out=r"roberta\.embeddings\.position_ids|roberta\.pooler\..*",
)
ROBERTA_PRELAYERNORM = _family(
    "roberta-prelayernorm",
    "RobertaPreLayerNorm",
    fixed=_FIXED | {"norm_placement": "pre"},
    required=_EXACT,
    read=_read_roberta,
    written=_written_roberta,
    links=_pre_norm_links,
    prefix="roberta_prelayernorm.",
    left_out=r"roberta_prelayernorm\.(embeddings\.position_ids|pooler\..*)",
)
DISTILBERT = _family(
    "distilbert",
    "DistilBert",
    tasks={"DistilBertForMaskedLM": "masked_lm", "DistilBertModel": "masked_lm"},
    same={
        "dim": "d_model",
        "hidden_dim": "d_ff",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "max_position_embeddings": "max_length",
    },
    fixed=_FIXED | {"norm_epsilon": 1e-12, "num_token_types": 0},
    links=_distilbert_links,
    activation="activation",
    defaults={
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "max_position_embeddings": 512,
    },
    required={"tie_word_embeddings": True},
    left_out=r"distilbert\.embeddings\.position_ids",
)

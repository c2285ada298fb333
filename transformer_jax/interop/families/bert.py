# SPDX-License-Identifier: Apache-2.0
"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019), its pre-norm variant (Ott et al. 2019), and
DistilBERT (Sanh et al. 2019). XLM-RoBERTa (Conneau et al. 2020) and CamemBERT (Martin et al. 2020)
are RoBERTa with other vocabularies. ModernBERT (Warner et al. 2024)."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping

from transformer_jax.errors import UserError
from transformer_jax.interop.families import base, decoders
from transformer_jax.interop.families.base import Family, Fields, Head, Keys, Options, TensorMapping
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
_FIELDS: Fields = {
    **base.SIZES,
    "max_position_embeddings": ("max_length", 512),
    "hidden_dropout_prob": ("dropout_rate", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout_rate", 0.1),
    "layer_norm_eps": ("norm_epsilon", 1e-12),
    "hidden_act": ("activation", "gelu"),
    "type_vocab_size": ("num_token_types", 2),
}
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


def _to_keys(model: TransformerConfig) -> Keys:
    """At least one token type, as transformers looks one up for every token."""
    return {"type_vocab_size": max(model.num_token_types, 1)}


def _to_keys_roberta(model: TransformerConfig) -> Keys:
    rows = model.max_length + model.position_offset
    return {**_to_keys(model), "max_position_embeddings": rows}


_BERT = {
    "prediction_head/transform": "cls.predictions.transform.dense",
    "prediction_head/norm": "cls.predictions.transform.LayerNorm",
    "pooler": "bert.pooler.dense",
    "classifier": "classifier",
}
_ROBERTA = {
    "prediction_head/transform": "lm_head.dense",
    "prediction_head/norm": "lm_head.layer_norm",
    "pooler": "classifier.dense",
    "classifier": "classifier.out_proj",
}
_LAYER = {
    **base.attention_modules(
        "self_attention", "attention", ("self.query", "self.key", "self.value", "output.dense")
    ),
    "feed_forward/inner": "intermediate.dense",
    "feed_forward/outer": "output.dense",
    "self_attention_residual/norm_after": "attention.output.LayerNorm",
    "feed_forward_residual/norm_after": "output.LayerNorm",
    # Of the pre-norm variant.
    "self_attention_residual/norm_before": "attention.LayerNorm",
    "feed_forward_residual/norm_before": "intermediate.LayerNorm",
}
_DISTILBERT = {
    "prediction_head/transform": "vocab_transform",
    "prediction_head/norm": "vocab_layer_norm",
}
_DISTILBERT_LAYER = {
    **base.attention_modules("self_attention", "attention", ("q_lin", "k_lin", "v_lin", "out_lin")),
    "feed_forward/inner": "ffn.lin1",
    "feed_forward/outer": "ffn.lin2",
    "self_attention_residual/norm_after": "sa_layer_norm",
    "feed_forward_residual/norm_after": "output_layer_norm",
}


def _mappings(
    model: TransformerConfig,
    name: str,
    head: str,
    modules: Mapping[str, str],
    layers: str = "encoder.layer",
    layer: Mapping[str, str] = _LAYER,
) -> Iterator[TensorMapping]:
    """Mappings of a model.

    Args:
      name: of the module with everything but the heads.
      head: of the module with the prediction head's matrix.
      modules: linear maps and norms outside of the layers, ours -> published.
      layers: list of the layers in the module `name`.
      layer: modules of each.
    """
    embeddings = f"{name}.embeddings."
    table = (f"{embeddings}word_embeddings.weight", f"{head}.decoder.weight", f"{head}.weight")
    yield TensorMapping("embedding/table", table)
    positions = f"{embeddings}position_embeddings.weight"
    yield TensorMapping("input/positions/table", (positions,))
    token_types = f"{embeddings}token_type_embeddings.weight"
    yield TensorMapping("input/token_types", (token_types,))
    yield TensorMapping("prediction_head/bias", (f"{head}.bias", f"{head}.decoder.bias"))
    yield from base.map_modules("input/", embeddings, {"norm": "LayerNorm"})
    yield from base.map_modules("", "", modules)
    yield from base.map_layers("encoder", f"{name}.{layers}", model.num_layers, layer)


def _classes(name: str) -> dict[str, str]:
    return {
        f"{name}ForMaskedLM": "masked_lm",
        f"{name}ForPreTraining": "masked_lm",
        f"{name}Model": "masked_lm",
        f"{name}ForSequenceClassification": "classification",
        f"{name}ForTokenClassification": "tagging",
    }


_family = functools.partial(
    Family,
    architecture="encoder_only",
    fields=_FIELDS,
    fixed_fields=_FIXED,
    required=_REQUIRED,
    no_effect=(
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    ),
)
_TAGGER = Head({"classifier": "classifier"})
_DISTILBERT_CLASSIFIER = Head(
    {"pooler": "pre_classifier", "classifier": "classifier"},
    fixed_fields={"pooler_activation": "relu"},
)

BERT = _family(
    model_type="bert",
    tasks=_classes("Bert"),
    to_keys=_to_keys,
    defaults={"pad_token_id": 0},
    mappings=functools.partial(_mappings, name="bert", head="cls.predictions", modules=_BERT),
    prefix="bert.",
    ignored_tensors=r"bert\.embeddings\.position_ids|cls\.seq_relationship\..*|bert\.pooler\..*",
)
ROBERTA = _family(
    model_type="roberta",
    tasks=_classes("Roberta"),
    defaults={"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    # The head always uses the exact GELU; here it has the activation of the layers.
    required=_REQUIRED | {"hidden_act": "gelu"},
    to_options=_to_options_roberta,
    to_keys=_to_keys_roberta,
    mappings=functools.partial(_mappings, name="roberta", head="lm_head", modules=_ROBERTA),
    prefix="roberta.",
    ignored_tensors=r"roberta(_prelayernorm)?\.(embeddings\.position_ids|pooler\..*)",
    heads={"tagging": _TAGGER},
)
XLM_ROBERTA = dataclasses.replace(ROBERTA, model_type="xlm-roberta", tasks=_classes("XLMRoberta"))
CAMEMBERT = dataclasses.replace(ROBERTA, model_type="camembert", tasks=_classes("Camembert"))
_PRE_NORM = {"encoder/final_norm": "roberta_prelayernorm.LayerNorm"}
ROBERTA_PRELAYERNORM = dataclasses.replace(
    ROBERTA,
    model_type="roberta-prelayernorm",
    tasks=_classes("RobertaPreLayerNorm"),
    fixed_fields=_FIXED | {"norm_placement": "pre"},
    mappings=functools.partial(
        _mappings, name="roberta_prelayernorm", head="lm_head", modules=_ROBERTA | _PRE_NORM
    ),
    prefix="roberta_prelayernorm.",
)
DISTILBERT = _family(
    model_type="distilbert",
    tasks=_classes("DistilBert"),
    heads={"tagging": _TAGGER, "classification": _DISTILBERT_CLASSIFIER},
    fields={
        "dim": "d_model",
        "hidden_dim": "d_ff",
        "n_layers": "num_layers",
        "n_heads": "num_heads",
        "activation": ("activation", "gelu"),
        "dropout": ("dropout_rate", 0.1),
        "attention_dropout": ("attention_dropout_rate", 0.1),
        "max_position_embeddings": ("max_length", 512),
    },
    fixed_fields=_FIXED | {"norm_epsilon": 1e-12, "num_token_types": 0},
    mappings=functools.partial(
        _mappings,
        name="distilbert",
        head="vocab_projector",
        modules=_DISTILBERT,
        layers="transformer.layer",
        layer=_DISTILBERT_LAYER,
    ),
    prefix="distilbert.",
    defaults={"pad_token_id": 0},
    required={"tie_word_embeddings": True},
    neutral={"tie_weights_": True},
    no_effect=("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout"),
    ignored_tensors=r"distilbert\.embeddings\.position_ids",
)


_MODERNBERT_LAYER = {
    "self_attention/output": "attn.Wo",
    "feed_forward/outer": "mlp.Wo",
    "self_attention_residual/norm_before": "attn_norm",
    "feed_forward_residual/norm_before": "mlp_norm",
}
_MODERNBERT_HEAD = {"prediction_head/transform": "head.dense", "prediction_head/norm": "head.norm"}


def _to_options_modernbert(keys: Keys) -> Options:
    """Transformers 5 writes `layer_types` and `rope_parameters` for three older keys."""
    every = keys["global_attn_every_n_layers"]
    layers = range(keys["num_hidden_layers"])
    kinds = [decoders.LAYER_TYPES[i % every == 0] for i in layers]
    reach, odd = divmod(keys["local_attention"], 2)  # tokens on either side
    if odd:
        raise UserError("config.json: local_attention is odd; it must be even")
    options = {**decoders.window_options(keys, kinds, reach + 1)}
    local_theta = decoders.unscaled_theta(keys, "sliding_attention", keys["local_rope_theta"])
    if options:
        options["rope_theta_window"] = local_theta
    base.require_value(keys, "classifier_activation", keys["hidden_activation"])
    return {
        **options,
        "rope_theta": decoders.unscaled_theta(keys, "full_attention", keys["global_rope_theta"]),
        "norm": "layer" if keys["norm_bias"] else "layer_unbiased",
    }


def _to_keys_modernbert(model: TransformerConfig) -> Keys:
    local = model.rope_theta_window or model.rope_theta
    thetas = {"sliding_attention": local, "full_attention": model.rope_theta}
    return {
        "layer_types": decoders.layer_types(model),
        "local_attention": 2 * ((model.attention_window or 1) - 1),
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
        },
        "norm_bias": model.norm == "layer",
        "classifier_activation": base.key_value("activation", model.activation),
    }


def _modernbert_mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    table = ("model.embeddings.tok_embeddings.weight", "decoder.weight")
    yield TensorMapping("embedding/table", table)
    yield TensorMapping("prediction_head/bias", ("decoder.bias",))
    norms = {"input/norm": "model.embeddings.norm", "encoder/final_norm": "model.final_norm"}
    yield from base.map_modules("", "", {**norms, **_MODERNBERT_HEAD})
    joined = {
        "attn.Wqkv": base.join_projections(*[model.d_model] * 3),
        "mlp.Wi": base.join_gated(model.d_ff),
    }
    layers = model.num_layers
    yield from base.map_layers("encoder", "model.layers", layers, _MODERNBERT_LAYER, joined)


MODERNBERT = Family(
    model_type="modernbert",
    architecture="encoder_only",
    tasks={"ModernBertForMaskedLM": "masked_lm", "ModernBertModel": "masked_lm"},
    fields=base.SIZES
    | {
        "max_position_embeddings": ("max_length", 8192),
        "hidden_activation": ("activation", "gelu"),
        "norm_eps": ("norm_epsilon", 1e-5),
        "embedding_dropout": ("embedding_dropout_rate", 0.0),
        "mlp_dropout": ("feed_forward_dropout_rate", 0.0),
        "classifier_bias": ("head_bias", False),
    },
    fixed_fields=decoders.FIXED
    | {
        "first_norm": False,
        "embedding_norm": True,
        "num_token_types": 0,
        "tie_embeddings": "all",
    },
    to_options=_to_options_modernbert,
    to_keys=_to_keys_modernbert,
    mappings=_modernbert_mappings,
    defaults={
        **{"pad_token_id": 50_283, "eos_token_id": 50_282, "bos_token_id": 50_281},
        **{"classifier_activation": "gelu", "norm_bias": False},
        **{"global_attn_every_n_layers": 3, "local_attention": 128},
        **{"global_rope_theta": 160_000.0, "local_rope_theta": 10_000.0},
    },
    required={
        "attention_bias": False,
        "mlp_bias": False,
        "decoder_bias": True,
        "tie_word_embeddings": True,
    },
    neutral={"attention_dropout": 0.0, "classifier_dropout": 0.0},
    no_effect=(
        *("classifier_pooling", "deterministic_flash_attn", "sparse_prediction"),
        *("sparse_pred_ignore_index", "initializer_cutoff_factor", "reference_compile"),
        *("repad_logits_with_grad", "position_embedding_type"),
    ),
    prefix="model.",
    ignored_tensors=r"model\.layers\.\d+\.attn\.rotary_emb\.inv_freq",
)

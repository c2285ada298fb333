# SPDX-License-Identifier: Apache-2.0
"""T5 (Raffel et al. 2020), T5 v1.1 (Shazeer 2020) and Flan-T5 (Chung et al. 2022)."""

from collections.abc import Iterator

from transformer_jax.interop.families.base import (
    Family,
    Keys,
    Options,
    activation_name,
    parse_activation,
)
from transformer_jax.interop.tensor_mapping import (
    TensorMapping,
    map_attention,
    map_linear,
    map_norm,
    map_table,
)
from transformer_jax.nn.config import TransformerConfig

_ATTENTION = ("q", "k", "v", "o")


def _to_options(keys: Keys) -> Options:
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
        "activation": parse_activation(name, "feed_forward_proj"),
        "gated_feed_forward": gated,
        "key_size": keys["d_kv"],
        "value_size": keys["d_kv"],
        "max_distance": keys["relative_attention_max_distance"],
        "num_decoder_layers": keys.get("num_decoder_layers") or keys["num_layers"],
        "scale_logits": scaled,
        "tie_embeddings": "all" if tied else "inputs",
    }


def _to_keys(model: TransformerConfig) -> Keys:
    name = activation_name(model.activation)
    if model.gated_feed_forward:
        name = "gated-gelu" if name == "gelu_new" else f"gated-{name}"
    return {
        "feed_forward_proj": name,
        "d_kv": model.d_k,
        "relative_attention_max_distance": model.max_distance or 128,
        "num_decoder_layers": model.num_decoder_layers,
        "scale_decoder_outputs": model.scale_logits,
        "tie_word_embeddings": model.tie_embeddings == "all",
        "is_encoder_decoder": True,
    }


def _mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    copies = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    if model.tie_embeddings == "all":
        copies.append("lm_head.weight")
    yield map_table("target_embedding/table", *copies)
    yield map_table("projection/table", "lm_head.weight")
    stacks = (
        ("encoder", "source", model.num_encoder_layers, 1),
        ("decoder", "target", model.num_decoder_layers, 2),
    )
    for stack, side, layers, feed_forward_index in stacks:
        biases = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield map_table(f"{side}_positions/bucket_biases", biases)
        yield from map_norm(f"{stack}/final_norm", f"{stack}.final_layer_norm")
        for i in range(layers):
            path = f"{stack}/layer_{i}"
            prefix = f"{stack}.block.{i}.layer"
            yield from _map_layer(path, prefix, feed_forward_index, model.gated_feed_forward)


def _map_layer(path: str, prefix: str, index: int, gated: bool) -> Iterator[TensorMapping]:
    """Maps a layer whose feed-forward sublayer is number `index`."""
    yield from map_attention(f"{path}/self_attention", f"{prefix}.0.SelfAttention", _ATTENTION)
    yield from map_norm(f"{path}/self_attention_residual/norm_before", f"{prefix}.0.layer_norm")
    yield from map_attention(f"{path}/cross_attention", f"{prefix}.1.EncDecAttention", _ATTENTION)
    yield from map_norm(f"{path}/cross_attention_residual/norm_before", f"{prefix}.1.layer_norm")
    sublayer = f"{prefix}.{index}"
    yield from map_norm(f"{path}/feed_forward_residual/norm_before", f"{sublayer}.layer_norm")
    names = {"inner": "wi_1", "gate": "wi_0"} if gated else {"inner": "wi"}
    for name, tensor in {**names, "outer": "wo"}.items():
        yield from map_linear(f"{path}/feed_forward/{name}", f"{sublayer}.DenseReluDense.{tensor}")


T5 = Family(
    model_type="t5",
    architecture="encoder_decoder",
    tasks={"T5ForConditionalGeneration": "seq2seq"},
    fields={
        "d_model": "d_model",
        "d_ff": "d_ff",
        "num_layers": "num_encoder_layers",
        "num_heads": "num_heads",
        "relative_attention_num_buckets": "num_buckets",
        "dropout_rate": "dropout_rate",
        "layer_norm_epsilon": "norm_epsilon",
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
    to_options=_to_options,
    to_keys=_to_keys,
    mappings=_mappings,
    defaults={
        **{"pad_token_id": 0, "eos_token_id": 1},
        "d_kv": 64,
        "num_decoder_layers": None,
        "tie_word_embeddings": True,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
    },
    no_effect=("dense_act_fn", "is_gated_act", "classifier_dropout", "n_positions"),
    ignored_tensors=r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)

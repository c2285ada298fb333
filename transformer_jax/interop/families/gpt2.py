# SPDX-License-Identifier: Apache-2.0
"""GPT-2 (Radford et al. 2019)."""

from collections.abc import Iterator

from transformer_jax.interop.families.base import Family, Keys, Options
from transformer_jax.interop.tensor_mapping import TensorMapping, map_norm, map_table
from transformer_jax.nn.config import TransformerConfig


def _to_options(keys: Keys) -> Options:
    tied = keys["tie_word_embeddings"]
    return {
        "d_ff": keys.get("n_inner") or 4 * keys["n_embd"],
        "tie_embeddings": "all" if tied else "none",
        "embedding_dropout_rate": keys["embd_pdrop"],
    }


def _to_keys(model: TransformerConfig) -> Keys:
    return {
        "n_inner": model.d_ff,
        "tie_word_embeddings": model.tie_embeddings in ("all", "target"),
        "embd_pdrop": model.embedding_dropout,
    }


def _mappings(model: TransformerConfig) -> Iterator[TensorMapping]:
    tied = ["lm_head.weight"] if model.tie_embeddings in ("all", "target") else []
    yield map_table("embedding/table", "transformer.wte.weight", *tied)
    yield map_table("projection/table", "lm_head.weight")
    yield map_table("input/positions/table", "transformer.wpe.weight")
    yield from map_norm("decoder/final_norm", "transformer.ln_f")
    for i in range(model.num_layers):
        path = f"decoder/layer_{i}"
        attention = f"{path}/self_attention"
        prefix = f"transformer.h.{i}"
        for part, name in enumerate(("query", "key", "value")):
            yield from _map_linear(f"{attention}/{name}", f"{prefix}.attn.c_attn", (part, 3))
        yield from _map_linear(f"{attention}/output", f"{prefix}.attn.c_proj")
        yield from _map_linear(f"{path}/feed_forward/inner", f"{prefix}.mlp.c_fc")
        yield from _map_linear(f"{path}/feed_forward/outer", f"{prefix}.mlp.c_proj")
        yield from map_norm(f"{path}/self_attention_residual/norm_before", f"{prefix}.ln_1")
        yield from map_norm(f"{path}/feed_forward_residual/norm_before", f"{prefix}.ln_2")


def _map_linear(path: str, prefix: str, part: tuple[int, int] = (0, 1)) -> Iterator[TensorMapping]:
    """Linear map stored as [inputs, outputs]."""
    yield TensorMapping(f"{path}/kernel", (f"{prefix}.weight",), transposed=False, part=part)
    yield TensorMapping(f"{path}/bias", (f"{prefix}.bias",), part=part)


GPT2 = Family(
    model_type="gpt2",
    architecture="decoder_only",
    tasks={"GPT2LMHeadModel": "language_modeling", "GPT2Model": "language_modeling"},
    fields={
        "n_embd": "d_model",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_positions": "max_length",
        "layer_norm_epsilon": "norm_epsilon",
        "resid_pdrop": "dropout_rate",
        "attn_pdrop": "attention_dropout_rate",
    },
    fixed_fields={
        "norm": "layer",
        "norm_placement": "pre",
        "positions": "learned",
        "attention_bias": "all",
        "scale_embeddings": False,
    },
    to_options=_to_options,
    to_keys=_to_keys,
    mappings=_mappings,
    activation_key="activation_function",
    defaults={
        **{"bos_token_id": 50_256, "eos_token_id": 50_256},
        "activation_function": "gelu_new",
        "n_positions": 1024,
        "n_inner": None,
        "tie_word_embeddings": True,
        "layer_norm_epsilon": 1e-5,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "attn_pdrop": 0.1,
    },
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

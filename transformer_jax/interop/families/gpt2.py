"""GPT-2 (Radford et al. 2019)."""

from collections.abc import Iterator

from transformer_jax.interop.families.base import Family, Keys, Options
from transformer_jax.interop.tensor_mapping import TensorMapping, norm, table
from transformer_jax.nn.config import TransformerConfig


def _read(keys: Keys) -> Options:
    tied = keys.get("tie_word_embeddings", True)
    return {
        "d_ff": keys.get("n_inner") or 4 * keys["n_embd"],
        "tie_embeddings": "all" if tied else "none",
        "embedding_dropout_rate": keys["embd_pdrop"],
    }


def _written(model: TransformerConfig) -> Keys:
    return {
        "n_inner": model.d_ff,
        "tie_word_embeddings": model.tie_embeddings in ("all", "target"),
        "embd_pdrop": model.embedding_dropout,
    }


def _links(model: TransformerConfig) -> Iterator[TensorMapping]:
    tied = ["lm_head.weight"] if model.tie_embeddings in ("all", "target") else []
    yield table("embedding/table", "transformer.wte.weight", *tied)
    yield table("projection/table", "lm_head.weight")
    yield table("input/positions/table", "transformer.wpe.weight")
    yield from norm("decoder/final_norm", "transformer.ln_f")
    for i in range(model.num_layers):
        ours, theirs = f"decoder/layer_{i}", f"transformer.h.{i}"
        for part, name in enumerate(("query", "key", "value")):
            yield from _map(f"{ours}/self_attention/{name}", f"{theirs}.attn.c_attn", (part, 3))
        yield from _map(f"{ours}/self_attention/output", f"{theirs}.attn.c_proj")
        yield from _map(f"{ours}/feed_forward/inner", f"{theirs}.mlp.c_fc")
        yield from _map(f"{ours}/feed_forward/outer", f"{theirs}.mlp.c_proj")
        yield from norm(f"{ours}/self_attention_residual/norm_before", f"{theirs}.ln_1")
        yield from norm(f"{ours}/feed_forward_residual/norm_before", f"{theirs}.ln_2")


def _map(ours: str, theirs: str, part: tuple[int, int] = (0, 1)) -> Iterator[TensorMapping]:
    """A linear map, stored as [inputs, outputs]."""
    yield TensorMapping(f"{ours}/kernel", (f"{theirs}.weight",), transposed=False, part=part)
    yield TensorMapping(f"{ours}/bias", (f"{theirs}.bias",), part=part)


GPT2 = Family(
    model_type="gpt2",
    architecture="decoder_only",
    tasks={"GPT2LMHeadModel": "language_modeling", "GPT2Model": "language_modeling"},
    same={
        "n_embd": "d_model",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_positions": "max_length",
        "layer_norm_epsilon": "norm_epsilon",
        "resid_pdrop": "dropout_rate",
        "attn_pdrop": "attention_dropout_rate",
    },
    fixed={
        "norm": "layer",
        "norm_placement": "pre",
        "positions": "learned",
        "attention_bias": "all",
        "scale_embeddings": False,
    },
    read=_read,
    written=_written,
    links=_links,
    activation="activation_function",
    defaults={
        "activation_function": "gelu_new",
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
    prefix="transformer.",
    left_out=r"transformer\.h\.\d+\.attn\.(masked_)?bias",
)

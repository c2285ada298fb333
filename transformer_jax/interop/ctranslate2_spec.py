# SPDX-License-Identifier: Apache-2.0
"""Converts a model to a CTranslate2 specification: its architecture and its arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.interop.family_match import Leaves
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import encoding_class

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELUTanh",
    "gelu_exact": "GELU",
    "silu": "SWISH",
    "swish": "SWISH",
}
_TABLE_POSITIONS = ("sinusoidal", "sinusoidal_halves", "learned", "none")
"""Positions that CTranslate2 adds to the embeddings from a table."""


def build_specification(model: TransformerConfig, leaves: Leaves, positions: int) -> Any:
    """`ctranslate2.specs.ModelSpec` of an encoder-decoder or a decoder-only model.

    Args:
      model: options of the run, without padded vocabularies.
      leaves: its arrays by path.
      positions: rows of a sinusoid table.

    Raises:
      UserError: CTranslate2 does not support an option of the model.
    """
    from ctranslate2.specs import transformer_spec

    _require_supported(model)
    stacks = _StackBuilder(model, leaves, positions)
    decoder = stacks.build("decoder", "target" if model.target_vocab_size else "input")
    if model.architecture == "decoder_only":
        return transformer_spec.TransformerDecoderModelSpec(decoder)
    return transformer_spec.TransformerSpec(stacks.build("encoder", "source"), decoder)


def _require_supported(model: TransformerConfig) -> None:
    """Raises UserError for an option that CTranslate2 does not support in this architecture."""
    is_decoder_only = model.architecture == "decoder_only"
    supported: Mapping[str, Sequence[Any]] = {
        "architecture": ("encoder_decoder", "decoder_only"),
        "activation": tuple(_ACTIVATIONS),
        "positions": (
            *_TABLE_POSITIONS,
            "relative",
            "t5",
            *(("rotary",) if is_decoder_only else ()),
        ),
        "norm": ("layer", "rms", "rms_plus_one"),
        "norm_placement": ("post", "pre", *(("sandwich",) if is_decoder_only else ())),
        "first_norm": (True,),
        "block": ("sequential",),
        "residual": ("add",),
        "residual_connections": (True,),
        # In an encoder-decoder CTranslate2 4.8 takes the norms and computes other numbers.
        "qk_norm": (False, True) if is_decoder_only else (False,),
        "attention_layer": ("multi_head",),
        "feed_forward": ("dense",),
        "layers": (None,),
        "attention_window": (None,),
        "logit_cap": (None,),
        "rope_scaling": ("none", "linear"),
        "final_logit_cap": (None,),
        "embedding_norm": (False,) if is_decoder_only else (False, True),
        "value_size": (None, model.d_k),
    }
    for field, values in supported.items():
        value = getattr(model, field)
        if value not in values:
            raise UserError(
                f"--format=ctranslate2: config.model.{field} is {value!r}; CTranslate2 supports "
                f"{' or '.join(map(repr, values))} here"
            )


class _StackBuilder:
    """Builds the specification of an encoder or a decoder; arguments of `build_specification`."""

    def __init__(self, model: TransformerConfig, leaves: Leaves, positions: int):
        self._model = model
        self._leaves = leaves
        self._positions = positions

    def build(self, name: str, side: str) -> Any:
        """Specification of the stack `name` ("encoder" or "decoder") with its arrays.

        `side` is that of its embeddings: "source", "target", or "input" if there is only one.
        """
        stack = self._empty_spec(name)
        c = self._model
        is_encoder = name == "encoder"
        embedding = "embedding" if side == "input" else f"{side}_embedding"
        if f"{embedding}/table" not in self._leaves:  # shared
            embedding = "target_embedding"
        table = self._leaves[f"{embedding}/table"]
        # An encoder has a list of embeddings, one for each source factor.
        (stack.embeddings[0] if is_encoder else stack.embeddings).weight = table
        stack.scale_embeddings = float(c.d_model**0.5) if c.scale_embeddings else 1.0
        positions = "input/positions" if side == "input" else f"{side}_positions"
        if c.positions in _TABLE_POSITIONS:
            stack.position_encodings.encodings = self._position_table(positions)
        self._norm(getattr(stack, "layer_norm", None), f"{name}/final_norm")
        self._norm(getattr(stack, "layernorm_embedding", None), f"{side}_norm")
        for i, layer in enumerate(stack.layer):
            self._layer(layer, f"{name}/layer_{i}", positions)
        if not is_encoder:
            stack.projection.weight = self._leaves.get("projection/table", table)
            if "logits_bias" in self._leaves:
                stack.projection.bias = self._leaves["logits_bias"]
            if c.scale_logits:
                stack.scale_outputs = float(c.d_model**-0.5)
        return stack

    def _empty_spec(self, name: str) -> Any:
        from ctranslate2.specs import attention_spec, common_spec, transformer_spec

        c = self._model
        options: dict[str, Any] = {
            "pre_norm": c.norm_placement != "post",
            "activation": common_spec.Activation[_ACTIVATIONS[c.activation]],
            "layernorm_embedding": c.embedding_norm,
            "relative_position": c.positions == "relative",
            "relative_attention_bias": c.positions == "t5",
            "ffn_glu": c.gated_feed_forward,
            "rms_norm": c.norm != "layer",
            "num_heads_kv": c.num_key_value_heads,
            "head_dim": c.key_size,
            "qk_norm": c.qk_norm,
            "pre_post_layer_norm": c.norm_placement == "sandwich",
        }
        if c.positions == "rotary":
            linear = attention_spec.RotaryScalingType.Linear
            options |= {
                "rotary_dim": int(c.d_k * c.rope_fraction),
                "rotary_interleave": c.rope_layout == "pairs",
                "rotary_base": c.rope_theta,
                "rotary_scaling_type": linear if c.rope_scaling == "linear" else None,
                "rotary_scaling_factor": c.rope_factor,
            }
        if name == "encoder":
            return transformer_spec.TransformerEncoderSpec(
                c.num_encoder_layers, c.num_heads, **options
            )
        is_decoder_only = c.architecture == "decoder_only"
        layers = c.num_layers if is_decoder_only else c.num_decoder_layers
        return transformer_spec.TransformerDecoderSpec(
            layers, c.num_heads, with_encoder_attention=not is_decoder_only, **options
        )

    def _layer(self, layer: Any, path: str, positions: str) -> None:
        self._attention(layer.self_attention, f"{path}/self_attention")
        self._relative_positions(layer.self_attention, f"{path}/self_attention", positions)
        if self._model.architecture == "encoder_decoder" and hasattr(layer, "attention"):
            self._attention(layer.attention, f"{path}/cross_attention", fused=1)
            self._residual(layer.attention, f"{path}/cross_attention_residual")
        names = {"inner": "linear_0", "outer": "linear_1"}
        if self._model.gated_feed_forward:
            names = {"gate": "linear_0", "inner": "linear_0_noact", "outer": "linear_1"}
        for name, linear in names.items():
            self._linear(getattr(layer.ffn, linear), f"{path}/feed_forward/{name}")
        if self._model.norm_placement == "sandwich":
            attention = f"{path}/self_attention_residual"
            feed_forward = f"{path}/feed_forward_residual"
            self._norm(layer.input_layer_norm, f"{attention}/norm_before")
            self._norm(layer.post_attention_layer_norm, f"{attention}/norm_after")
            self._norm(layer.pre_feedforward_layer_norm, f"{feed_forward}/norm_before")
            self._norm(layer.post_feedforward_layer_norm, f"{feed_forward}/norm_after")
        else:
            self._residual(layer.self_attention, f"{path}/self_attention_residual")
            self._residual(layer.ffn, f"{path}/feed_forward_residual")

    def _attention(self, attention: Any, path: str, fused: int = 0) -> None:
        """Fills an attention layer.

        Query, key and value projections from index `fused` on form one linear map: all three in
        self-attention (0), keys and values in cross-attention (1).
        """
        names = ["query", "key", "value"]
        for linear, name in zip(attention.linear, names[:fused], strict=False):
            self._linear(linear, f"{path}/{name}")
        self._linear(attention.linear[fused], *(f"{path}/{name}" for name in names[fused:]))
        self._linear(attention.linear[-1], f"{path}/output")
        if self._model.attention_scale is not None:
            attention.queries_scale = float(self._model.attention_scale)
        if self._model.qk_norm:
            attention.q_norm.gamma = self._leaves[f"{path}/norm_query/scale"]
            attention.k_norm.gamma = self._leaves[f"{path}/norm_key/scale"]

    def _relative_positions(self, attention: Any, path: str, positions: str) -> None:
        if self._model.positions == "relative":
            attention.relative_position_keys = self._leaves[f"{path}/relation/keys"]
            attention.relative_position_values = self._leaves[f"{path}/relation/values"]
        if self._model.positions == "t5":
            attention.relative_attention_bias = self._leaves[f"{positions}/bucket_biases"]
            farthest = np.int32(self._model.max_distance or 128)
            attention.relative_attention_max_distance = farthest

    def _linear(self, linear: Any, *paths: str) -> None:
        """Fills a linear map, [outputs, inputs]. Concatenates several maps of the same inputs."""
        kernels = [self._leaves[f"{name}/kernel"] for name in paths]
        inputs = len(kernels[0].shape) - 1 if paths[0].endswith("output") else 1
        flat = [kernel.reshape(int(np.prod(kernel.shape[:inputs])), -1) for kernel in kernels]
        linear.weight = np.ascontiguousarray(np.concatenate(flat, axis=1).T)
        if f"{paths[0]}/bias" in self._leaves:
            biases = [self._leaves[f"{name}/bias"].reshape(-1) for name in paths]
            linear.bias = np.concatenate(biases)

    def _residual(self, sublayer: Any, path: str) -> None:
        side = "after" if self._model.norm_placement == "post" else "before"
        self._norm(sublayer.layer_norm, f"{path}/norm_{side}")

    def _norm(self, norm: Any, path: str) -> None:
        if norm is None:
            return
        plus_one = self._model.norm == "rms_plus_one"
        norm.gamma = self._leaves[f"{path}/scale"] + np.float32(plus_one)
        if self._model.norm == "layer":
            norm.beta = self._leaves[f"{path}/bias"]

    def _position_table(self, path: str) -> np.ndarray:
        c = self._model
        if c.positions == "learned":
            return self._leaves[f"{path}/table"][c.position_offset :]
        if c.positions == "none":
            # Where a table is missing, CTranslate2 adds sinusoids.
            return np.zeros((self._positions, c.d_model), np.float32)
        zeros = jnp.zeros((1, self._positions, c.d_model))
        positions = jnp.arange(self._positions)[None]
        return np.asarray(encoding_class(c)(c).apply({}, zeros, positions, method="embed"))[0]

"""A model as CTranslate2 describes one: its specification, with the arrays in it."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.interop.rewrites import Leaves
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.positions import encoding_class

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELUTanh",
    "gelu_exact": "GELU",
    "silu": "SWISH",
    "swish": "SWISH",
}
_ADDED = ("sinusoidal", "sinusoidal_halves", "learned", "none")
"""Positions that CTranslate2 takes as a table, added to the embeddings."""


def specification(model: TransformerConfig, leaves: Leaves, positions: int) -> Any:
    """The `ctranslate2.specs.ModelSpec` of a model with an encoder and a decoder, or a decoder.

    Args:
      model: of the run; without padded vocabulary.
      leaves: path -> array.
      positions: rows of a table of sinusoids.

    Raises:
      UserError: CTranslate2 has no such model; the option is named.
    """
    from ctranslate2.specs import transformer_spec

    _require_known(model)
    stack = _Stack(model, leaves, positions)
    decoder = stack.filled("decoder", "target" if model.target_vocab_size else "input")
    if model.architecture == "decoder_only":
        return transformer_spec.TransformerDecoderModelSpec(decoder)
    return transformer_spec.TransformerSpec(stack.filled("encoder", "source"), decoder)


def _require_known(model: TransformerConfig) -> None:
    """Raises UserError for an option that CTranslate2 has not, or only in some models."""
    one_stack = model.architecture == "decoder_only"
    known: Mapping[str, Sequence[Any]] = {
        "architecture": ("encoder_decoder", "decoder_only"),
        "activation": tuple(_ACTIVATIONS),
        "positions": (*_ADDED, "relative", "t5", *(("rotary",) if one_stack else ())),
        "norm": ("layer", "rms", "rms_plus_one"),
        "norm_placement": ("post", "pre", *(("sandwich",) if one_stack else ())),
        "attention_window": (None,),
        "logit_cap": (None,),
        "rope_scaling": ("none", "linear"),
        "final_logit_cap": (None,),
        "embedding_norm": (False,) if one_stack else (False, True),
        "value_size": (None, model.d_k),
        "vocab_multiple": (1,),
    }
    for field, values in known.items():
        if (value := getattr(model, field)) not in values:
            raise UserError(
                f"--format=ctranslate2: config.model.{field} is {value!r}; CTranslate2 has "
                f"{' or '.join(map(repr, values))} here"
            )


class _Stack:
    """Fills the specification of an encoder or a decoder.

    Args:
      model: options.
      leaves: path -> array.
      positions: rows of a table of sinusoids.
    """

    def __init__(self, model: TransformerConfig, leaves: Leaves, positions: int):
        self._model, self._leaves, self._positions = model, leaves, positions

    def filled(self, name: str, side: str) -> Any:
        """The stack "encoder" or "decoder", which reads the embeddings of `side`."""
        stack = self._empty(name)
        c, of_encoder = self._model, name == "encoder"
        embedding = "embedding" if side == "input" else f"{side}_embedding"
        if f"{embedding}/table" not in self._leaves:  # shared
            embedding = "target_embedding"
        table = self._leaves[f"{embedding}/table"]
        (stack.embeddings[0] if of_encoder else stack.embeddings).weight = table
        stack.scale_embeddings = float(c.d_model**0.5) if c.scale_embeddings else 1.0
        where = "input/positions" if side == "input" else f"{side}_positions"
        if c.positions in _ADDED:
            stack.position_encodings.encodings = self._added(where)
        self._norm(getattr(stack, "layer_norm", None), f"{name}/final_norm")
        self._norm(getattr(stack, "layernorm_embedding", None), f"{side}_norm")
        for i, layer in enumerate(stack.layer):
            self._layer(layer, f"{name}/layer_{i}", where)
        if not of_encoder:
            projection = self._leaves.get("projection/table", table)
            stack.projection.weight = projection
            if "logits_bias" in self._leaves:
                stack.projection.bias = self._leaves["logits_bias"]
            if c.scale_logits:
                stack.scale_outputs = float(c.d_model**-0.5)
        return stack

    def _empty(self, name: str) -> Any:
        from ctranslate2.specs import common_spec, transformer_spec

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
            scaled = c.rope_scaling == "linear"
            options |= {
                "rotary_dim": int(c.d_k * c.rope_fraction),
                "rotary_interleave": c.rope_layout == "pairs",
                "rotary_base": c.rope_theta,
                "rotary_scaling_type": _linear_scaling() if scaled else None,
                "rotary_scaling_factor": c.rope_factor,
            }
        if name == "encoder":
            return transformer_spec.TransformerEncoderSpec(
                c.num_encoder_layers, c.num_heads, **options
            )
        one_stack = c.architecture == "decoder_only"
        layers = c.num_layers if one_stack else c.num_decoder_layers
        return transformer_spec.TransformerDecoderSpec(
            layers, c.num_heads, with_encoder_attention=not one_stack, **options
        )

    def _layer(self, layer: Any, ours: str, positions: str) -> None:
        self._attention(layer.self_attention, f"{ours}/self_attention")
        self._relations(layer.self_attention, f"{ours}/self_attention", positions)
        if self._model.architecture == "encoder_decoder" and hasattr(layer, "attention"):
            self._attention(layer.attention, f"{ours}/cross_attention", fused=1)
            self._residual(layer.attention, f"{ours}/cross_attention_residual")
        names = {"inner": "linear_0", "outer": "linear_1"}
        if self._model.gated_feed_forward:
            names = {"gate": "linear_0", "inner": "linear_0_noact", "outer": "linear_1"}
        for name, theirs in names.items():
            self._linear(getattr(layer.ffn, theirs), f"{ours}/feed_forward/{name}")
        if self._model.norm_placement == "sandwich":
            first, second = f"{ours}/self_attention_residual", f"{ours}/feed_forward_residual"
            self._norm(layer.input_layer_norm, f"{first}/norm_before")
            self._norm(layer.post_attention_layer_norm, f"{first}/norm_after")
            self._norm(layer.pre_feedforward_layer_norm, f"{second}/norm_before")
            self._norm(layer.post_feedforward_layer_norm, f"{second}/norm_after")
        else:
            self._residual(layer.self_attention, f"{ours}/self_attention_residual")
            self._residual(layer.ffn, f"{ours}/feed_forward_residual")

    def _attention(self, attention: Any, ours: str, fused: int = 0) -> None:
        """`fused`: the map with which the joined ones begin: keys and values of the encoder's
        output, or queries, keys and values."""
        names = ["query", "key", "value"]
        for linear, name in zip(attention.linear, names[:fused], strict=False):
            self._linear(linear, f"{ours}/{name}")
        self._linear(attention.linear[fused], *(f"{ours}/{name}" for name in names[fused:]))
        self._linear(attention.linear[-1], f"{ours}/output")
        if self._model.attention_scale is not None:
            attention.queries_scale = float(self._model.attention_scale)
        if self._model.qk_norm:
            attention.q_norm.gamma = self._leaves[f"{ours}/norm_query/scale"]
            attention.k_norm.gamma = self._leaves[f"{ours}/norm_key/scale"]

    def _relations(self, attention: Any, ours: str, positions: str) -> None:
        if self._model.positions == "relative":
            attention.relative_position_keys = self._leaves[f"{ours}/relation/keys"]
            attention.relative_position_values = self._leaves[f"{ours}/relation/values"]
        if self._model.positions == "t5":
            attention.relative_attention_bias = self._leaves[f"{positions}/bucket_biases"]
            farthest = np.int32(self._model.max_distance or 128)
            attention.relative_attention_max_distance = farthest

    def _linear(self, linear: Any, *ours: str) -> None:
        """One map, or several of the same inputs joined: [outputs, inputs]."""
        kernels = [self._leaves[f"{name}/kernel"] for name in ours]
        inputs = len(kernels[0].shape) - 1 if ours[0].endswith("output") else 1
        flat = [each.reshape(int(np.prod(each.shape[:inputs])), -1) for each in kernels]
        linear.weight = np.ascontiguousarray(np.concatenate(flat, axis=1).T)
        if f"{ours[0]}/bias" in self._leaves:
            biases = [self._leaves[f"{name}/bias"].reshape(-1) for name in ours]
            linear.bias = np.concatenate(biases)

    def _residual(self, sublayer: Any, ours: str) -> None:
        after = self._model.norm_placement == "post"
        self._norm(sublayer.layer_norm, f"{ours}/norm_{'after' if after else 'before'}")

    def _norm(self, norm: Any, ours: str) -> None:
        if norm is None:
            return
        plus_one = self._model.norm == "rms_plus_one"
        norm.gamma = self._leaves[f"{ours}/scale"] + np.float32(plus_one)
        if self._model.norm == "layer":
            norm.beta = self._leaves[f"{ours}/bias"]

    def _added(self, where: str) -> np.ndarray:
        c = self._model
        if c.positions == "learned":
            return self._leaves[f"{where}/table"][c.position_offset :]
        if c.positions == "none":
            return np.zeros((self._positions, c.d_model), np.float32)
        nothing = jnp.zeros((1, self._positions, c.d_model))
        place = jnp.arange(self._positions)[None]
        return np.asarray(encoding_class(c)(c).apply({}, nothing, place, method="embed"))[0]


def _linear_scaling() -> Any:
    from ctranslate2.specs import attention_spec

    return attention_spec.RotaryScalingType.Linear

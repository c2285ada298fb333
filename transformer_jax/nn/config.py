# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters of a Transformer: one frozen dataclass for all architectures."""

import dataclasses
import math
from typing import Annotated

import jax.numpy as jnp

from transformer_jax.fields import GIVEN, Configurable
from transformer_jax.nn.layer_pattern import (
    PARAMETERS,
    Overrides,
    override,
    pattern_text,
    read_pattern,
)
from transformer_jax.nn.ops import DTYPES, product_dtype
from transformer_jax.ranges import (
    Cap,
    DropoutRate,
    Heads,
    Layers,
    Length,
    OneOf,
    Range,
    Size,
    check_fields,
)
from transformer_jax.runtime import platform

NORMAL_STD = 0.02  # of BERT and GPT-2


@dataclasses.dataclass(frozen=True)
class TransformerConfig(Configurable):
    """Hyperparameters of "Attention Is All You Need" (table 3) and of later Transformers.

    Attributes:
      architecture: the model, an entry of `models.MODELS`.
      d_model: width of the residual stream (section 3.1).
      d_ff: inner width of the feed-forward layers (section 3.3).
      num_heads: attention heads h (section 3.2.2).
      key_size: size d_k of a head's queries and keys; None: d_model / num_heads.
      value_size: size d_v of a head's values; None: d_model / num_heads.
      num_encoder_layers, num_decoder_layers: layers N of the encoder and of the decoder.
      num_layers: layers of a decoder-only or encoder-only model.
      scan_layers: compile one layer of each stack and loop over its parameters in training, so that
        deep models compile as fast as shallow ones. May change when a run is resumed.
      num_key_value_heads: heads G of keys and values, shared by groups of query heads: 1 is
        multi-query (Shazeer 2019), more is grouped-query attention (Ainslie et al. 2023); None:
        num_heads.
      block: class of a layer, an entry of `nn.transformer.BLOCKS`: "sequential", or "merged", whose
        self-attention sees the source, too, in place of cross-attention (T5Gemma 2, 2025).
      residual: residual stream between the sublayers, an entry of `nn.transformer.RESIDUALS`.
      attention_layer: layer that mixes the tokens of a sequence, in self-attention, an entry of
        `nn.layers.ATTENTION_LAYERS`.
      feed_forward: layer that computes each token by itself, an entry of
        `nn.layers.FEED_FORWARDS`.
      attention_window: width r of local attention (section 4): in a decoder each token attends to
        the last r tokens, itself included; in an encoder to r - 1 tokens on either side. n tokens
        cost O(r n). None: no window.
      encoder_window: window of the encoder's layers in place of `attention_window`; None: the same.
      layers: fields that differ from layer to layer, repeated through each stack
        (`nn.layer_pattern`): "3 x attention_window=128 | positions=none" gives three layers a
        window, and the fourth no positions. "parameters=0" gives all layers the parameters and
        fields of layer 0, as in ALBERT (Lan et al. 2020); "parameters=0 | parameters=1" uses two
        layers in turn, as a looped Transformer. None: all layers are equal.
      attention_scale: factor on the products of queries and keys; None: 1 / sqrt(d_k).
      logit_cap: soft cap c of attention logits x: c tanh(x / c) (Gemma 2, 2024); None: no cap.
      qk_norm: apply RMSNorm to each query and key, with a learned scale shared by the heads (Henry
        et al. 2020, Dehghani et al. 2023).
      dropout_rate: P_drop on sublayer outputs and on embeddings plus positions (section 5.4).
      embedding_dropout_rate: dropout on embeddings plus positions; None: dropout_rate.
      attention_dropout_rate: dropout on attention weights (not in the paper's text).
      feed_forward_dropout_rate: dropout on the inner feed-forward activations (not in the paper's
        text).
      dropout_bits: random bits of dropout: "threefry" (independent of the devices and of how they
        divide the work), "hardware" (the accelerator's own generator, faster), or "auto": hardware
        on accelerators, threefry on CPUs.
      attention_bias: biases in the attention projections: "none" (as in the paper), "qkv" (queries,
        keys and values, as in Qwen2), "output" (W^O only) or "all".
      feed_forward_bias: biases in the feed-forward layers (section 3.3).
      positions: position encoding (section 3.5), an entry of `nn.positions.POSITIONS`.
      max_length: number of learned positions; no sequence may be longer.
      position_offset: row of the table of learned positions that position 0 uses: 2 in BART and
        RoBERTa.
      max_distance: largest distance that positions "relative", "t5", "deberta" and "deberta_hf"
        distinguish; None: 16 (relative), 128 (t5) or 512 (deberta), as in their papers.
      num_buckets: buckets of distances in positions "t5", both directions together.
      rope_theta: base of rotary positions: pair i of K elements rotates by theta^(-2i / K) per
        position.
      rope_theta_window: the same in layers with an attention window, where `rope_scaling` does not
        apply (Gemma 3, 2025); None: as in all layers.
      rope_fraction: share of each head's elements that is rotated, the first ones.
      rope_layout: elements that form a pair: "pairs" (x_2i, x_2i+1) or "halves" (x_i, x_i+K/2), as
        in Llama.
      rope_scaling: slower rotation for longer contexts: "none", "linear" (every pair, Chen et al.
        2023), "llama3" (pairs of long wavelengths, Llama 3, 2024) or "yarn" (pairs with few turns,
        and sharper attention, Peng et al. 2023).
      rope_factor: number that scalings divide the angles by.
      rope_low_factor: in "llama3", wavelengths longer than rope_original_length / rope_low_factor
        are scaled by the whole factor.
      rope_high_factor: in "llama3", wavelengths shorter than rope_original_length /
        rope_high_factor are not scaled; between the two limits the scaling is interpolated.
      rope_original_length: context length before the scaling, in tokens.
      norm: "layer" (LayerNorm), "layer_unbiased" (without its bias, as in ModernBERT), "batch"
        (BatchNorm, over tokens), "rms" (RMSNorm) or "rms_plus_one"
        (RMSNorm whose scale is 1 + the parameter, as in Gemma); qk_norm is always RMSNorm.
      norm_epsilon: constant added to the variance or mean square, in qk_norm too.
      norm_placement: "post": LayerNorm(x + Sublayer(x)), as in the paper; "pre": x +
        Sublayer(LayerNorm(x)); "sandwich": x + LayerNorm(Sublayer(LayerNorm(x))).
      first_norm: norm before the first sublayer of a stack, in placements "pre" and "sandwich";
        false where `embedding_norm` comes right before it (ModernBERT, Warner et al. 2024).
      residual_connections: add the sublayer's input to its output; false only to see what it does.
      activation: "relu" (section 3.3), "gelu" (the tanh approximation), "gelu_exact", "silu",
        "swish" (the same as silu) or "squared_relu" (So et al. 2021).
      gated_feed_forward: multiply the activations by a second projection: GEGLU with "gelu", SwiGLU
        with "silu" (Shazeer 2020). This makes three matrices instead of two; set d_ff to 2/3 for
        the same number of parameters.
      tie_embeddings: matrices that are shared: "all" (source, target and pre-softmax, section 3.4),
        "target" (target and pre-softmax), "inputs" (source and target) or "none". A decoder-only or
        encoder-only model has no source matrix.
      vocab_multiple: pad the embedding matrix with unused zero rows to a multiple of this, for the
        hardware (128) or so that `parallel.tensor` divides it.
      scale_embeddings: multiply token embeddings by sqrt(d_model) (section 3.4).
      scale_logits: divide the final hidden states by sqrt(d_model), as T5 does with tied
        embeddings.
      logits_bias: add a bias to the pre-softmax projection, as in Marian.
      final_logit_cap: soft cap c of the output logits x: c tanh(x / c) (Gemma 2, 2024); None: no
        cap.
      embedding_norm: apply a norm to embeddings plus positions, as in BERT and BART.
      pooler_activation: activation of the layer before the output of a text classifier: "tanh", as
        in BERT, or "relu", as in DistilBERT.
      head_bias: bias of the linear map before the output of a masked language model.
      num_token_types: embeddings of the segments in a pair of texts: 2 in BERT; 0: none.
      initialization: "xavier" (uniform; embeddings N(0, 1 / d_model)), "bert" (everything N(0,
        0.02^2), Devlin et al. 2019), "gpt2" (as "bert", but in a stack of n sublayers the output
        projections are divided by sqrt(n), Radford et al. 2019) or "zero_output" (as "bert", but
        the output projections start at 0, so that at first a sublayer adds nothing).
      attention: implementation of self- and cross-attention in training, an entry of
        `nn.fused_attention.ATTENTION`: "plain" (the paper's equation), "cudnn" or "splash" (fused
        kernels for GPUs and TPUs), or "auto": the fastest that computes exactly what the model
        needs.
      dtype: dtype of matrix products: "auto" (bfloat16 if it is faster here), "float32" or
        "bfloat16".
      activation_dtype: dtype of the activations between layers: "auto" (bfloat16 if products are
        bfloat16, but float32 on CPUs), "float32" or "bfloat16". Norms, softmax and losses are
        computed in float32; parameters and optimizer state are float32.
      source_vocab_size, target_vocab_size, vocab_size: vocabulary sizes of the tokenizers.
      separator_id: token that ends the first text of a pair; -1: none.
      start_id: first input of a decoder that reads the encoder's text; -1: none.

    Raises:
      ValueError: a value out of range, an unknown choice, or values that do not go together.
    """

    architecture: str = "encoder_decoder"
    d_model: Size = 512
    d_ff: Annotated[int, Range(1, 2**20)] = 2048
    num_heads: Heads = 8
    key_size: Size | None = None
    value_size: Size | None = None
    num_key_value_heads: Heads | None = None
    block: str = "sequential"
    residual: str = "add"
    attention_layer: str = "multi_head"
    feed_forward: str = "dense"
    attention_window: Length | None = None
    encoder_window: Length | None = None
    layers: str | None = None
    attention_scale: Annotated[float, Range(0, 1e3, "(]")] | None = None
    logit_cap: Cap | None = None
    qk_norm: bool = False
    num_encoder_layers: Layers = 6
    num_decoder_layers: Layers = 6
    num_layers: Layers = 6
    scan_layers: bool = False
    dropout_rate: DropoutRate = 0.1
    embedding_dropout_rate: DropoutRate | None = None
    attention_dropout_rate: DropoutRate = 0.0
    feed_forward_dropout_rate: DropoutRate = 0.0
    dropout_bits: Annotated[str, OneOf("auto", "threefry", "hardware")] = "auto"
    attention_bias: Annotated[str, OneOf("none", "qkv", "output", "all")] = "none"
    feed_forward_bias: bool = True
    positions: str = "sinusoidal"
    max_length: Length = 512
    position_offset: Annotated[int, Range(0, 1024)] = 0
    max_distance: Length | None = None
    num_buckets: Annotated[int, Range(4, 65_536)] = 32
    rope_theta: Annotated[float, Range(1, 1e12, "(]")] = 10_000.0
    rope_theta_window: Annotated[float, Range(1, 1e12, "(]")] | None = None
    rope_fraction: Annotated[float, Range(0, 1, "(]")] = 1.0
    rope_layout: Annotated[str, OneOf("pairs", "halves")] = "pairs"
    rope_scaling: str = "none"
    rope_factor: Annotated[float, Range(1, 1e6)] = 8.0
    rope_low_factor: Annotated[float, Range(0, 1e6, "(]")] = 1.0
    rope_high_factor: Annotated[float, Range(0, 1e6, "(]")] = 4.0
    rope_original_length: Length = 8192
    norm: str = "layer"
    norm_epsilon: Annotated[float, Range(0, 0.1, "(]")] = 1e-6
    norm_placement: Annotated[str, OneOf("post", "pre", "sandwich")] = "post"
    first_norm: bool = True
    residual_connections: bool = True
    activation: str = "relu"
    gated_feed_forward: bool = False
    tie_embeddings: Annotated[str, OneOf("all", "inputs", "target", "none")] = "all"
    vocab_multiple: Annotated[int, Range(1, 4096)] = 1
    scale_embeddings: bool = True
    scale_logits: bool = False
    logits_bias: bool = False
    final_logit_cap: Cap | None = None
    embedding_norm: bool = False
    pooler_activation: Annotated[str, OneOf("tanh", "relu")] = "tanh"
    head_bias: bool = True
    num_token_types: Annotated[int, Range(0, 1024)] = 0
    initialization: Annotated[str, OneOf("xavier", "bert", "gpt2", "zero_output")] = "xavier"
    attention: str = "auto"
    dtype: Annotated[str, OneOf(*DTYPES)] = "auto"
    activation_dtype: Annotated[str, OneOf(*DTYPES)] = "auto"
    source_vocab_size: int = dataclasses.field(default=0, metadata=GIVEN)
    target_vocab_size: int = dataclasses.field(default=0, metadata=GIVEN)
    vocab_size: int = dataclasses.field(default=0, metadata=GIVEN)
    separator_id: int = dataclasses.field(default=-1, metadata=GIVEN)
    start_id: int = dataclasses.field(default=-1, metadata=GIVEN)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", pattern_text(self.layers))
        check_fields(self)
        self._check_heads()
        has_own = ["attention_window" in overrides for overrides in self.pattern]
        if self.encoder_window is not None and (self.attention_window is None or all(has_own)):
            raise ValueError("encoder_window replaces model.attention_window, which no layer has")
        if not self.first_norm and self.norm_placement == "post":
            raise ValueError(
                "first_norm=False needs norms before sublayers; norm_placement is 'post'"
            )
        self._check_pattern()

    def _check_pattern(self) -> None:
        windows = [
            overrides.get("attention_window", self.attention_window) for overrides in self.pattern
        ]
        if self.rope_theta_window is not None and not any(windows):
            raise ValueError("rope_theta_window is set, but no layer has an attention_window")
        if self.scan_layers and any(PARAMETERS in overrides for overrides in self.pattern):
            raise ValueError("layers that share parameters cannot be scanned; unset scan_layers")
        for i, overrides in enumerate(self.pattern if self.layers else ()):
            owner = self.owner_of_layer(i)
            if self.owner_of_layer(owner) != owner or (owner != i and len(overrides) > 1):
                raise ValueError(
                    f"layers: layer {i} has the parameters of layer {owner}, which must be its own "
                    f"(default, or parameters={owner}); their fields are the same, so set none here"
                )
            if overrides.get("positions", "none") not in ("none", self.positions):
                raise ValueError(
                    f"layers: positions is {overrides['positions']!r}; a layer has those of the "
                    f"model ({self.positions!r}) or none"
                )
            try:
                self.of_layer(i)
            except ValueError as error:
                raise ValueError(f"layers: {error}") from error

    def _check_heads(self) -> None:
        for name in ("key_size", "value_size"):
            if getattr(self, name) is None and self.d_model % self.num_heads:
                raise ValueError(
                    f"num_heads {self.num_heads} does not divide d_model {self.d_model}; "
                    f"choose sizes that divide or set {name}"
                )
        if self.num_heads % self.key_value_heads:
            raise ValueError(
                f"num_key_value_heads {self.num_key_value_heads} does not divide num_heads "
                f"{self.num_heads}"
            )

    @property
    def d_k(self) -> int:
        """Size of a head's queries and keys."""
        return self.key_size or self.d_model // self.num_heads

    @property
    def d_v(self) -> int:
        """Size of a head's values."""
        return self.value_size or self.d_model // self.num_heads

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_heads

    @property
    def query_scale(self) -> float:
        """Factor on queries that turns the scale 1 / sqrt(d_k) into `attention_scale`."""
        return 1.0 if self.attention_scale is None else self.attention_scale * math.sqrt(self.d_k)

    @property
    def embedding_dropout(self) -> float:
        """P_drop on embeddings plus positions."""
        rate = self.embedding_dropout_rate
        return self.dropout_rate if rate is None else rate

    @property
    def of_encoder(self) -> "TransformerConfig":
        """Config of the encoder of an encoder-decoder, with its own window."""
        if self.encoder_window is None:
            return self
        window = self.encoder_window
        return dataclasses.replace(self, attention_window=window, encoder_window=None)

    def of_layer(self, index: int) -> "TransformerConfig":
        """Config of layer `index` of a stack, with the overrides of the pattern."""
        if self.layers is None and (self.first_norm or index == 0):
            return self
        index = self.owner_of_layer(index)
        overrides = dict(self.pattern[index % len(self.pattern)])
        overrides["first_norm"] = self.first_norm or index > 0
        overrides.pop(PARAMETERS, None)
        if overrides.get("attention_window", self.attention_window) is None:
            overrides |= {"rope_theta_window": None, "encoder_window": None}  # they need a window
        return override(self, {"layers": None, **overrides})

    def owner_of_layer(self, index: int) -> int:
        """Index of the layer of a stack whose parameters and fields layer `index` uses."""
        return self.pattern[index % len(self.pattern)].get(PARAMETERS, index)

    @property
    def pattern(self) -> tuple[Overrides, ...]:
        """Overrides of each layer of a period, which is repeated through every stack."""
        return read_pattern(self.layers, TransformerConfig) if self.layers else ({},)

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Number of rows in the embedding table of a vocabulary (`vocab_multiple`)."""
        return -(-vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def embedding_std(self) -> float:
        """Standard deviation of initial embeddings of tokens and learned positions."""
        return self.d_model**-0.5 if self.initialization == "xavier" else NORMAL_STD

    @property
    def kernel_std(self) -> float | None:
        """Standard deviation of initial kernels; None: Xavier-uniform."""
        return None if self.initialization == "xavier" else NORMAL_STD

    def residual_std(self, num_sublayers: int) -> float | None:
        """Standard deviation of initial kernels whose outputs join the residual stream, in a stack
        of `num_sublayers`; None: Xavier-uniform."""
        match self.initialization:
            case "gpt2":
                return NORMAL_STD / math.sqrt(num_sublayers)
            case "zero_output":
                return 0.0
            case _:
                return self.kernel_std


def activation_dtype(config: TransformerConfig) -> jnp.dtype:
    """Dtype of activations between layers; "auto" depends on the device compiled for."""
    if config.activation_dtype == "auto":
        return jnp.dtype(jnp.float32) if platform.is_cpu() else product_dtype(config.dtype)
    return jnp.dtype(config.activation_dtype)

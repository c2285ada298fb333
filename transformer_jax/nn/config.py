"""The sizes and choices of a Transformer: one frozen dataclass for all its architectures."""

import dataclasses
import math
from typing import Annotated

import jax.numpy as jnp

from transformer_jax.nn.products import DTYPES, product_dtype
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

GIVEN = {"given": True}
"""Field metadata: the value follows from another part (the tokenizer), never from a config file."""

NORMAL_STD = 0.02


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Hyperparameters of "Attention Is All You Need", table 3, and of what grew out of it.

    Attributes:
      architecture: the model, an entry of `models.MODELS`.
      d_model: width of the residual stream (section 3.1).
      d_ff: inner width of the feed-forward layers (section 3.3).
      num_heads: attention heads h (section 3.2.2).
      key_size: size d_k of a head's queries and keys; None: d_model / num_heads.
      value_size: size d_v of a head's values; None: d_model / num_heads.
      num_encoder_layers, num_decoder_layers: layers N of the encoder and of the decoder.
      num_layers: layers of a model that is one stack, decoder-only or encoder-only.
      scan_layers: training compiles one layer of each stack and loops over its parameters, so that
        a deep model compiles as fast as a shallow one; a run may go on with the other value.
      num_key_value_heads: heads G of keys and values, which groups of heads share: 1 in multi-query
        (Shazeer 2019), more in grouped-query attention (Ainslie et al. 2023); None: num_heads.
      attention_window: a token attends only to tokens less than r positions away (section 4): in a
        decoder the last r, itself included, in an encoder r - 1 on either side. Rows of n tokens
        cost O(r n). None: no window.
      full_attention_every: n; every n-th layer has no window (2 in Gemma 2). None: all have it.
      attention_scale: what products of queries and keys are multiplied by; None: 1 / sqrt(d_k).
      logit_cap: attention logits x become c tanh(x / c) (Gemma 2, 2024); None: they stay.
      qk_norm: RMSNorm of each query and key, with a learned scale that the heads share (Henry et
        al. 2020, Dehghani et al. 2023).
      dropout_rate: P_drop on sublayer outputs and on embeddings plus positions (section 5.4).
      embedding_dropout_rate: on embeddings plus positions; None: dropout_rate.
      attention_dropout_rate: dropout on attention weights (not in the paper's text).
      feed_forward_dropout_rate: dropout on the inner feed-forward activations (nor is this).
      dropout_bits: "threefry": the same whatever the devices and however they divide the work;
        "hardware": an accelerator's own generator, faster there; "auto": hardware, but on CPUs.
      attention_bias: biases in the attention projections: "none" (as the paper writes them),
        "qkv" (queries, keys and values, as in Qwen2), "output" (W^O alone) or "all".
      feed_forward_bias: biases in the feed-forward layers (section 3.3).
      positions: how order enters the model (section 3.5), an entry of `nn.positions.POSITIONS`.
      max_length: learned positions, which no sequence may exceed.
      position_offset: rows of their table before that of position 0, 2 in BART and RoBERTa.
      max_distance: positions "relative", "t5" and "deberta" (or "deberta_hf") treat all distances
        beyond this one alike; None: 16, 128 and 512, as in their papers.
      num_buckets: of the distances of positions "t5", both directions together.
      rope_theta: of rotary positions; pair i of K elements turns by theta^(-2i / K) a position.
      rope_fraction: the share of each head's elements that turn, the first ones.
      rope_layout: a pair is "pairs" (x_2i, x_2i+1) or "halves" (x_i, x_i+K/2), as in Llama.
      rope_scaling: slower turns for longer texts: "none", "linear" (all of them, Chen et al. 2023)
        or "llama3" (those of long wavelengths, Llama 3, 2024).
      rope_factor: by which "linear" and "llama3" divide the angles.
      rope_low_factor: "llama3" divides in full where a text has fewer periods than this,
      rope_high_factor: not at all where it has more than this, and in between by degrees.
      rope_original_length: the tokens of such a text, as long as before the scaling.
      norm: "layer" (LayerNorm), "rms" (RMSNorm) or "rms_plus_one" (its scale is 1 + a parameter, as
        in Gemma), everywhere in the model but in qk_norm.
      norm_epsilon: added to the variance or mean square, in qk_norm too.
      norm_placement: "post" LayerNorm(x + Sublayer(x)) as in the paper, "pre" x +
        Sublayer(LayerNorm(x)), or "sandwich" x + LayerNorm(Sublayer(LayerNorm(x))).
      activation: "relu" (section 3.3), "gelu" (by its tanh approximation), "gelu_exact", "silu",
        "swish" (the same), or "squared_relu" (So et al. 2021).
      gated_feed_forward: the feed-forward layers multiply activations by a second projection: with
        "gelu" GEGLU, with "silu" SwiGLU (Shazeer 2020). That makes three matrices of two: take 2/3
        of d_ff for as many parameters.
      tie_embeddings: "all" shares source, target and pre-softmax matrices (section 3.4), "target"
        the last two, "inputs" the first two, "none" none. A model of one stack has the last two.
      vocab_multiple: token embeddings are padded with rows of zeros, which nothing reads, up to a
        multiple that the hardware likes (128) and that devices divide (`tensor`).
      scale_embeddings: multiply token embeddings by sqrt(d_model) (section 3.4).
      scale_logits: divide the last features by sqrt(d_model), as T5 with tied embeddings does.
      logits_bias: a bias of the pre-softmax projection, as in Marian.
      final_logit_cap: logits x of tokens become c tanh(x / c) (Gemma 2, 2024); None: they stay.
      embedding_norm: a norm over embeddings plus positions, as in BERT and BART.
      num_token_types: embeddings for the parts of a pair of texts, 2 in BERT; 0: none.
      initialization: "xavier" (uniform; embeddings N(0, 1 / d_model)), "bert" (all N(0, 0.02^2),
        Devlin et al. 2019) or "gpt2" (likewise, and the projections that end on the residual stream
        smaller by sqrt(n) in a stack of n sublayers, Radford et al. 2019).
      attention: what computes self-attention and attention to the encoder in training, an entry of
        `nn.kernels.ATTENTION`: "plain" (the paper's function), "cudnn" or "splash" (fused kernels,
        of GPUs and of TPUs), or "auto": the fastest that is exact for what the model asks.
      dtype: dtype of matrix products: "auto" (bfloat16 where the hardware has it), "float32" or
        "bfloat16".
      activation_dtype: dtype of what goes from layer to layer: "auto" (bfloat16 where products are
        bfloat16, except on CPUs), "float32" or "bfloat16". Norms, softmax, logits and losses are
        computed in float32, parameters and optimizer are float32.
      source_vocab_size, target_vocab_size, vocab_size: tokens that the tokenizers know.
      separator_id: the token that ends the first text of a pair; -1: there is none.

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
    attention_window: Length | None = None
    full_attention_every: Annotated[int, Range(2, 256)] | None = None
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
    activation: str = "relu"
    gated_feed_forward: bool = False
    tie_embeddings: Annotated[str, OneOf("all", "inputs", "target", "none")] = "all"
    vocab_multiple: Annotated[int, Range(1, 4096)] = 1
    scale_embeddings: bool = True
    scale_logits: bool = False
    logits_bias: bool = False
    final_logit_cap: Cap | None = None
    embedding_norm: bool = False
    num_token_types: Annotated[int, Range(0, 1024)] = 0
    initialization: Annotated[str, OneOf("xavier", "bert", "gpt2")] = "xavier"
    attention: str = "auto"
    dtype: Annotated[str, OneOf(*DTYPES)] = "auto"
    activation_dtype: Annotated[str, OneOf(*DTYPES)] = "auto"
    source_vocab_size: int = dataclasses.field(default=0, metadata=GIVEN)
    target_vocab_size: int = dataclasses.field(default=0, metadata=GIVEN)
    vocab_size: int = dataclasses.field(default=0, metadata=GIVEN)
    separator_id: int = dataclasses.field(default=-1, metadata=GIVEN)

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_heads()
        if self.full_attention_every is not None and self.attention_window is None:
            raise ValueError("full_attention_every is set, but no layer has an attention_window")

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
        """What queries are multiplied by, so that 1 / sqrt(d_k) makes `attention_scale` of it."""
        return 1.0 if self.attention_scale is None else self.attention_scale * math.sqrt(self.d_k)

    @property
    def embedding_dropout(self) -> float:
        """P_drop on embeddings plus positions."""
        rate = self.embedding_dropout_rate
        return self.dropout_rate if rate is None else rate

    def of_layer(self, index: int) -> "TransformerConfig":
        """What layer `index` of a stack goes by: every `full_attention_every`-th has no window."""
        every = self.full_attention_every
        if every is None or (index + 1) % every:
            return self
        return dataclasses.replace(self, attention_window=None, full_attention_every=None)

    def padded(self, vocab_size: int) -> int:
        """Rows of the table of so many tokens."""
        return -(-vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def embedding_std(self) -> float:
        """Standard deviation of fresh embeddings, of tokens and learned positions."""
        return self.d_model**-0.5 if self.initialization == "xavier" else NORMAL_STD

    @property
    def kernel_std(self) -> float | None:
        """Standard deviation of fresh kernels; None: they are Xavier-uniform."""
        return None if self.initialization == "xavier" else NORMAL_STD

    def residual_std(self, num_sublayers: int) -> float | None:
        """Likewise of those that end on the residual stream, in a stack of so many sublayers."""
        scaled = self.initialization == "gpt2"
        return NORMAL_STD / math.sqrt(num_sublayers) if scaled else self.kernel_std


def activation_dtype(config: TransformerConfig) -> jnp.dtype:
    """Dtype of what goes from layer to layer; "auto" asks what programs are compiled for."""
    if config.activation_dtype == "auto":
        return jnp.dtype(jnp.float32) if platform.is_cpu() else product_dtype(config.dtype)
    return jnp.dtype(config.activation_dtype)

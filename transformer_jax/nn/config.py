"""The sizes and choices of a Transformer: one frozen dataclass for all its architectures."""

import dataclasses
import math
from typing import Annotated

import jax.numpy as jnp

from transformer_jax.nn.products import DTYPES, product_dtype
from transformer_jax.ranges import DropoutRate, Length, OneOf, Range, Size, check_fields
from transformer_jax.runtime import platform

GIVEN = {"given": True}
"""Field metadata: the value follows from another part (the tokenizer), never from a config file."""

NORMAL_STD = 0.02

Layers = Annotated[int, Range(1, 256)]
"""Each layer is traced and compiled by itself, which takes seconds: a mistyped number must not take
for ever."""
Heads = Annotated[int, Range(1, 1024)]


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
      num_encoder_layers: layers N of the encoder.
      num_decoder_layers: layers N of the decoder.
      num_layers: layers of a model that is one stack, decoder-only or encoder-only.
      scan_layers: training compiles one layer of each stack and loops over its parameters, so that
        a deep model compiles as fast as a shallow one; a run may go on with the other value.
      num_key_value_heads: heads G of keys and values, which groups of heads share: 1 in multi-query
        (Shazeer 2019), more in grouped-query attention (Ainslie et al. 2023); None: num_heads.
      attention_window: a token attends only to tokens less than r positions away (section 4): in a
        decoder the last r, itself included, in an encoder r - 1 on either side. Rows of n tokens
        cost O(r n). None: no window.
      logit_cap: attention logits x become c tanh(x / c) (Gemma 2, 2024); None: they stay.
      qk_norm: RMSNorm of each query and key, with a learned scale that the heads share (Henry et
        al. 2020, Dehghani et al. 2023).
      dropout_rate: P_drop on sublayer outputs and on embeddings plus positions (section 5.4).
      attention_dropout_rate: dropout on attention weights (not in the paper's text).
      feed_forward_dropout_rate: dropout on the inner feed-forward activations (nor is this).
      dropout_bits: "threefry": the same whatever the devices and however they divide the work;
        "hardware": an accelerator's own generator, faster there; "auto": hardware, but on CPUs.
      attention_bias: biases in the attention projections: "none" (as the paper writes them),
        "output" (W^O alone) or "all".
      positions: how order enters the model (section 3.5), an entry of `nn.positions.POSITIONS`.
      max_length: rows of the table of learned positions, which no sequence may exceed.
      max_distance: positions "relative", "t5" and "deberta" (or "deberta_hf") treat all distances
        beyond this one alike; None: 16, 128 and 512, as in their papers.
      norm: "layer" (LayerNorm) or "rms" (RMSNorm), everywhere in the model.
      norm_placement: "post" LayerNorm(x + Sublayer(x)) as in the paper, "pre" x +
        Sublayer(LayerNorm(x)), or "sandwich" x + LayerNorm(Sublayer(LayerNorm(x))).
      activation: "relu" (section 3.3), "gelu" or "silu".
      gated_feed_forward: the feed-forward layers multiply activations by a second projection: with
        "gelu" GEGLU, with "silu" SwiGLU (Shazeer 2020). That makes three matrices of two: take 2/3
        of d_ff for as many parameters.
      tie_embeddings: "all" shares source, target and pre-softmax matrices (section 3.4; asks for a
        joint vocabulary), "target" the last two, "none" none. A model of one stack has one
        embedding, which "all" and "target" share with the pre-softmax matrix.
      vocab_multiple: the rows of token embeddings are padded with zeros up to a multiple of this,
        for products whose sizes the hardware likes (128) and for devices to divide (`tensor`). No
        padded row is ever looked up, predicted or part of a loss.
      scale_embeddings: multiply token embeddings by sqrt(d_model) (section 3.4).
      embedding_norm: a norm over embeddings plus positions, as BERT has it.
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
      source_vocab_size, target_vocab_size: tokens of the vocabularies, which the tokenizers tell.
      vocab_size: likewise, where there is one.
      separator_id: the token that ends the first text of a pair, by which token types are counted;
        -1: there is none.

    Raises:
      ValueError: a value out of range, an unknown choice, heads that do not divide d_model where
        key_size or value_size relies on it, or heads of keys and values that do not divide the
        heads.
    """

    architecture: str = "encoder_decoder"
    d_model: Size = 512
    d_ff: Annotated[int, Range(1, 2**20)] = 2048
    num_heads: Heads = 8
    key_size: Size | None = None
    value_size: Size | None = None
    num_key_value_heads: Heads | None = None
    attention_window: Length | None = None
    logit_cap: Annotated[float, Range(1e-3, 1e6)] | None = None
    qk_norm: bool = False
    num_encoder_layers: Layers = 6
    num_decoder_layers: Layers = 6
    num_layers: Layers = 6
    scan_layers: bool = False
    dropout_rate: DropoutRate = 0.1
    attention_dropout_rate: DropoutRate = 0.0
    feed_forward_dropout_rate: DropoutRate = 0.0
    dropout_bits: Annotated[str, OneOf("auto", "threefry", "hardware")] = "auto"
    attention_bias: Annotated[str, OneOf("none", "output", "all")] = "none"
    positions: str = "sinusoidal"
    max_length: Length = 512
    max_distance: Length | None = None
    norm: str = "layer"
    norm_placement: Annotated[str, OneOf("post", "pre", "sandwich")] = "post"
    activation: str = "relu"
    gated_feed_forward: bool = False
    tie_embeddings: Annotated[str, OneOf("all", "target", "none")] = "all"
    vocab_multiple: Annotated[int, Range(1, 4096)] = 1
    scale_embeddings: bool = True
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

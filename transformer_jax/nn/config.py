"""The sizes and choices of a Transformer: one frozen dataclass for all its architectures."""

import dataclasses

from transformer_jax import precision

GIVEN = {"given": True}
"""Field metadata: the value follows from another part (the tokenizer), never from a config file."""

_CHOICES = {
    "attention_bias": ("none", "output", "all"),
    "norm_placement": ("post", "pre", "sandwich"),
    "activation": ("relu", "gelu"),
    "tie_embeddings": ("all", "target", "none"),
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Hyperparameters of "Attention Is All You Need", table 3, and of what grew out of it.

    Attributes:
      architecture: entry of `models.MODELS`.
      d_model: width of the residual stream (section 3.1).
      d_ff: inner width of the feed-forward layers (section 3.3).
      num_heads: attention heads h (section 3.2.2).
      key_size: d_k of a head; None: d_model / num_heads.
      value_size: d_v of a head; None: d_model / num_heads.
      num_encoder_layers: N of the encoder.
      num_decoder_layers: N of the decoder.
      dropout_rate: P_drop on sublayer outputs and on embeddings plus positions (section 5.4).
      attention_dropout_rate: dropout on attention weights (not in the paper's text).
      feed_forward_dropout_rate: dropout on the inner feed-forward activations, likewise.
      attention_bias: biases in the attention projections: "none" (as the paper writes them),
        "output" (W^O alone) or "all".
      positions: entry of `nn.positions.POSITIONS` (section 3.5).
      max_length: rows of the table of learned positions.
      norm_placement: "post" LayerNorm(x + Sublayer(x)) as in the paper, "pre" x +
        Sublayer(LayerNorm(x)), or "sandwich" x + LayerNorm(Sublayer(LayerNorm(x))).
      activation: "relu" (section 3.3) or "gelu".
      tie_embeddings: "all" shares source, target and pre-softmax matrices (section 3.4; asks for a
        joint vocabulary), "target" the last two, "none" none.
      dtype: of matrix products: "auto" (bfloat16 where the hardware has it), "float32" or
        "bfloat16".
      source_vocab_size, target_vocab_size: pieces of the tokenizers.

    Raises:
      ValueError: a size that is not positive, a rate outside [0, 1), an unknown choice, or heads
        that do not divide d_model where key_size or value_size relies on it.
    """

    architecture: str = "encoder_decoder"
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    key_size: int | None = None
    value_size: int | None = None
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.0
    feed_forward_dropout_rate: float = 0.0
    attention_bias: str = "none"
    positions: str = "sinusoidal"
    max_length: int = 512
    norm_placement: str = "post"
    activation: str = "relu"
    tie_embeddings: str = "all"
    dtype: str = "auto"
    source_vocab_size: int = dataclasses.field(default=0, metadata=GIVEN)
    target_vocab_size: int = dataclasses.field(default=0, metadata=GIVEN)

    def __post_init__(self):
        for name in (
            "d_model",
            "d_ff",
            "num_heads",
            "num_encoder_layers",
            "num_decoder_layers",
            "max_length",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("dropout_rate", "attention_dropout_rate", "feed_forward_dropout_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must lie in [0, 1)")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, not one of {', '.join(choices)}"
                )
        for name in ("key_size", "value_size"):
            self._check_head_size(name)
        precision.product_dtype(self.dtype)

    def _check_head_size(self, name):
        size = getattr(self, name)
        if size is not None and size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
        if size is None and self.d_model % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide d_model {self.d_model}; "
                f"choose sizes that divide or set {name}"
            )

    @property
    def d_k(self) -> int:
        """Size of a head's queries and keys."""
        return self.key_size or self.d_model // self.num_heads

    @property
    def d_v(self) -> int:
        """Size of a head's values."""
        return self.value_size or self.d_model // self.num_heads

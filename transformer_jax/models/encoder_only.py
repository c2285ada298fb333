"""An encoder without a decoder: BERT (Devlin et al. 2019).

B batch, T tokens, P predicted positions, D model, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.embeddings import Embedding, InputEmbedding
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.masks import segment_mask
from transformer_jax.nn.products import product_dtype
from transformer_jax.nn.residual import make_norm
from transformer_jax.tokenization import EOS


class EncoderOnly(nn.Module):
    """Reads a text from both sides, and predicts tokens that are hidden in it.

    The defaults are the options of BERT.
    """

    defaults: ClassVar[Mapping[str, Any]] = {
        "model.activation": "gelu",
        "model.positions": "learned",
        "model.attention_bias": "all",
        "model.embedding_norm": True,
        "model.num_token_types": 2,
        "model.initialization": "bert",
        "model.scale_embeddings": False,
    }
    config: TransformerConfig

    def setup(self):
        c = self.config
        self.embedding = Embedding(c, c.vocab_size)
        self.input = InputEmbedding(c, causal=False)
        self.encoder = Encoder(c, c.num_layers)
        self.prediction_head = PredictionHead(c)
        tied = c.tie_embeddings != "none"
        self.projection = self.embedding if tied else Embedding(c, c.vocab_size)

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        predicted: jax.Array,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits of the token that belongs at each predicted place of packed rows.

        Args:
          tokens, positions, segment_ids: int32 [B, T].
          predicted: int32 [B, P], places in the row.
          deterministic: no dropout; otherwise the rng stream "dropout" is asked for.

        Returns:
          float32 [B, P, V].
        """
        x = self.features(tokens, positions, segment_ids, deterministic)
        x = jnp.take_along_axis(x, predicted[:, :, None], axis=1)
        return self.prediction_head(x, self.projection)

    def features(self, tokens, positions, segment_ids, deterministic: bool = True) -> jax.Array:
        """The encoder's output for packed rows [B, T] -> [B, T, D]."""
        types = token_types(tokens, positions) if self.config.num_token_types else None
        x = self.input(self.embedding.embed(tokens), positions, deterministic, types)
        mask = segment_mask(segment_ids, segment_ids)
        return self.encoder(x, positions, self.input.positions, mask, deterministic)


class PredictionHead(nn.Module):
    """Logits of hidden tokens: LayerNorm(GELU(x W + b)) E^T + c."""

    config: TransformerConfig

    def setup(self):
        c = self.config
        dtype = product_dtype(c.dtype)
        self.transform = Linear((c.d_model,), (c.d_model,), True, dtype, c.kernel_std)
        self.norm = make_norm(c)
        self.bias = self.param("bias", nn.initializers.zeros, c.vocab_size)

    def __call__(self, x: jax.Array, projection: Embedding) -> jax.Array:
        """x [B, P, D] -> [B, P, V], by a table that the head may share."""
        x = self.norm(ACTIVATIONS[self.config.activation](self.transform(x)))
        return projection.logits(x) + self.bias


def token_types(tokens: jax.Array, positions: jax.Array) -> jax.Array:
    """How many separators (EOS) stand before each token in its text: packed rows [B, T] each ->
    [B, T]. In a pair [CLS] a [SEP] b [SEP] that is 0 for the first part, 1 for the second."""
    separators = jnp.cumsum(tokens == EOS, axis=1) - (tokens == EOS)
    starts = jnp.arange(tokens.shape[1]) - positions
    return separators - jnp.take_along_axis(separators, starts, axis=1)

# SPDX-License-Identifier: Apache-2.0
"""An encoder without a decoder: BERT (Devlin et al. 2019).

B batch, T tokens, P masked tokens, D model, V vocabulary.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.embeddings import Embedding, InputEmbedding, Unprojected, output_embedding
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.masks import PerToken, row_places
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.sublayers import Sequences
from transformer_jax.nn.transformer import Encoder


class EncoderOnly(nn.Module):
    """Reads a text in both directions and predicts its masked tokens."""

    config: TransformerConfig

    defaults: ClassVar[Mapping[str, Any]] = {
        "model.activation": "gelu",
        "model.positions": "learned",
        "model.attention_bias": "all",
        "model.embedding_norm": True,
        "model.num_token_types": 2,
        "model.initialization": "bert",
        "model.scale_embeddings": False,
    }
    """Options of BERT, unless a config sets them."""
    reads: ClassVar[Collection[str]] = (
        *("model.num_layers", "model.num_token_types", "model.pooler_activation"),
        "model.head_bias",
    )

    def setup(self) -> None:
        c = self.config
        self.embedding = Embedding(c, c.vocab_size)
        self.input = InputEmbedding(c, causal=False)
        self.encoder = Encoder(c, c.num_layers)
        self.prediction_head = PredictionHead(c)
        self.projection = output_embedding(self.embedding)

    def __call__(self, *inputs: Any, **named: Any) -> Float[Array, "B P V"]:
        """Logits of each masked token, for the arguments of `unprojected`."""
        return self.unprojected(*inputs, **named).logits()

    def unprojected(
        self,
        tokens: PerToken,
        positions: PerToken | None = None,
        segment_ids: PerToken | None = None,
        predicted: Int[Array, "B P"] | None = None,
        deterministic: bool = True,
    ) -> Unprojected:
        """Hidden states that predict the tokens at the indices `predicted` of each row (None: all
        tokens), before the projection."""
        x = self.features(tokens, positions, segment_ids, deterministic)
        if predicted is not None:
            x = jnp.take_along_axis(x, predicted[:, :, None], axis=1)
        return self.prediction_head(x, self.projection)

    def features(
        self,
        tokens: PerToken,
        positions: PerToken | None = None,
        segment_ids: PerToken | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """The encoder's output for packed rows (defaults as of `nn.masks.row_places`)."""
        c = self.config
        positions, segment_ids = row_places(tokens, positions, segment_ids)
        types = token_types(tokens, positions, c.separator_id) if c.num_token_types else None
        x = self.input(self.embedding.embed(tokens), positions, deterministic, types)
        sequences = Sequences.packed(self.input.position_encoding, positions, segment_ids, tokens)
        return self.encoder(x, sequences, deterministic)


class PredictionHead(nn.Module):
    """Head that predicts masked tokens: LayerNorm(GELU(x W + b)) E^T + c, with the config's
    activation and norm."""

    config: TransformerConfig

    def setup(self) -> None:
        c = self.config
        self.transform = Linear((c.d_model,), (c.d_model,), c.head_bias, c, c.kernel_std)
        self.activation = ACTIVATIONS.configured(c.activation, c)
        self.norm = make_norm(c)
        self.bias = self.param("bias", nn.initializers.zeros, c.padded_vocab_size(c.vocab_size))

    def __call__(self, x: Float[Array, "B P D"], projection: Embedding) -> Unprojected:
        """Computes the head up to the projection, whose table may be shared with the inputs."""
        x = self.norm(self.activation(self.transform(x)))
        return projection.unprojected(x, self.bias)


def token_types(tokens: PerToken, positions: PerToken, separator: int) -> PerToken:
    """Number of separators before each token in its text, for packed rows.

    In a pair [CLS] a [SEP] b [SEP] this is 0 up to the first separator, then 1.
    """
    is_separator = tokens == separator
    separators = jnp.cumsum(is_separator, axis=1) - is_separator
    starts = jnp.arange(tokens.shape[1]) - positions
    return separators - jnp.take_along_axis(separators, starts, axis=1)

# SPDX-License-Identifier: Apache-2.0
"""Classification heads on a pre-trained body.

B batch, T tokens, J texts of a row, D model, C classes.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder, PackedTokens, shift_right
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.masks import PerToken, row_places

BODIES = (EncoderOnly, DecoderOnly)
"""Models of one stack, which have features of one text."""


def body_config(model: Any) -> TransformerConfig:
    """Config of a model, or of its body if it has a classification head."""
    return getattr(model, "body", model).config


class TokenClassifier(nn.Module):
    """Classifies each token: dropout and a linear map on the body's features. The body's parameters
    keep their paths, so that those of a pre-trained body fit."""

    body: DecoderOnly | EncoderOnly
    num_classes: int

    def setup(self) -> None:
        nn.share_scope(self, self.body)
        c = self.body.config
        self.head_dropout = Dropout.of(c, "dropout_rate")
        self.classifier = Linear((c.d_model,), (self.num_classes,), True, c, c.kernel_std, True)

    def __call__(
        self,
        tokens: PerToken,
        positions: PerToken | None = None,
        segment_ids: PerToken | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T C"]:
        """Logits for each token of packed rows."""
        x = self.body.features(tokens, positions, segment_ids, deterministic)
        return self.classifier(self.head_dropout(x, deterministic))


class TextClassifier(nn.Module):
    """Classifies each text: tanh(W x + b) (or `pooler_activation`), dropout and a linear map on the
    features of one token.

    For an encoder this is the first token (BERT's [CLS]), for a decoder the last, the only one that
    sees the whole text. Of an encoder-decoder both stacks read the text, the decoder shifted right
    (Lewis et al. 2020, section 3.1). The body's parameters keep their paths.
    """

    body: DecoderOnly | EncoderOnly | EncoderDecoder
    num_classes: int

    def setup(self) -> None:
        nn.share_scope(self, self.body)
        c = self.body.config
        self.pooler = Linear((c.d_model,), (c.d_model,), True, c, c.kernel_std)
        self.head_dropout = Dropout.of(c, "dropout_rate")
        self.classifier = Linear((c.d_model,), (self.num_classes,), True, c, c.kernel_std, True)

    def __call__(
        self,
        tokens: PerToken,
        positions: PerToken | None = None,
        segment_ids: PerToken | None = None,
        texts: Int[Array, "B J"] | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B J C"]:
        """Logits for each text of packed rows; `texts` are their segment ids (None: one text a
        row). Logits of segment 0 are meaningless."""
        positions, segment_ids = row_places(tokens, positions, segment_ids)
        texts = jnp.ones((len(tokens), 1), jnp.int32) if texts is None else texts
        x = self._features(PackedTokens(tokens, positions, segment_ids), deterministic)
        index = self._token_index(positions, segment_ids, texts)
        x = jnp.take_along_axis(x, index[:, :, None], axis=1)
        activation = {"tanh": jnp.tanh, "relu": nn.relu}[self.body.config.pooler_activation]
        x = self.head_dropout(activation(self.pooler(x)), deterministic)
        return self.classifier(x)

    def _features(self, text: PackedTokens, deterministic: bool) -> Float[Array, "B T D"]:
        if not isinstance(self.body, EncoderDecoder):
            return self.body.features(*text, deterministic)
        shifted = shift_right(text.ids, text.positions, self.body.config.start_id)
        return self.body.features(text, text._replace(ids=shifted), deterministic)

    def _token_index(
        self, positions: PerToken, segment_ids: PerToken, texts: Int[Array, "B J"]
    ) -> Int[Array, "B J"]:
        """Index of the token whose features represent each text."""
        in_text = segment_ids[:, None, :] == texts[:, :, None]  # [B, J, T]
        first = (in_text & (positions == 0)[:, None, :]).argmax(axis=2)
        if isinstance(self.body, EncoderOnly):
            return first
        return first + jnp.maximum(in_text.sum(axis=2), 1) - 1

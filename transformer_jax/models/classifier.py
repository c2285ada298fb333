"""A body that was trained on text, with a head that names classes.

B batch, T tokens, J texts of a row, D model, C classes.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.products import product_dtype

BODIES = (EncoderOnly, DecoderOnly)


class TokenClassifier(nn.Module):
    """A class for each token: dropout and a linear map on the body's features.

    The body's parameters stand beside the head's under the names that they have without it, so
    that those of a pre-trained body fit.
    """

    body: DecoderOnly | EncoderOnly
    num_classes: int

    def setup(self):
        nn.share_scope(self, self.body)
        c = self.body.config
        dtype = product_dtype(c.dtype)
        self.head_dropout = Dropout(c.dropout_rate)
        self.classifier = Linear((c.d_model,), (self.num_classes,), True, dtype, c.kernel_std)

    def __call__(self, tokens, positions, segment_ids, deterministic: bool = True) -> jax.Array:
        """Packed rows, int32 [B, T] each -> float32 [B, T, C]."""
        x = self.body.features(tokens, positions, segment_ids, deterministic)
        return self.classifier(self.head_dropout(x, deterministic))


class TextClassifier(nn.Module):
    """A class for each text: tanh(W x + b), dropout and a linear map on the features of one token,
    an encoder's first (BERT's [CLS]) or a decoder's last, which alone has seen the whole text.

    The body's parameters are named as in `TokenClassifier`.
    """

    body: DecoderOnly | EncoderOnly
    num_classes: int

    def setup(self):
        nn.share_scope(self, self.body)
        c = self.body.config
        dtype = product_dtype(c.dtype)
        self.pooler = Linear((c.d_model,), (c.d_model,), True, dtype, c.kernel_std)
        self.head_dropout = Dropout(c.dropout_rate)
        self.classifier = Linear((c.d_model,), (self.num_classes,), True, dtype, c.kernel_std)

    def __call__(
        self, tokens, positions, segment_ids, texts, deterministic: bool = True
    ) -> jax.Array:
        """Packed rows, int32 [B, T] each, and the segment ids of the texts asked for, [B, J] ->
        float32 [B, J, C]; what stands for segment 0 means nothing."""
        x = self.body.features(tokens, positions, segment_ids, deterministic)
        place = self._places(positions, segment_ids, texts)
        x = jnp.take_along_axis(x, place[:, :, None], axis=1)
        x = self.head_dropout(jnp.tanh(self.pooler(x)), deterministic)
        return self.classifier(x)

    def _places(self, positions, segment_ids, texts):
        """Where the token that stands for each text is: [B, J]."""
        size = (segment_ids[:, None, :] == texts[:, :, None]).sum(axis=2)
        starts = (segment_ids[:, None, :] == texts[:, :, None]) & (positions == 0)[:, None, :]
        first = starts.argmax(axis=2)
        return first if isinstance(self.body, EncoderOnly) else first + jnp.maximum(size, 1) - 1

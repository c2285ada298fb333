# SPDX-License-Identifier: Apache-2.0
"""Parts with mistakes of docs/mistakes.md, for `experiments/mistakes.py`.

B or N batch, T queries, S keys, D features.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from transformer_jax.losses import TOKEN_LOSSES, TokenLoss, cross_entropy
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.positions import POSITIONS
from transformer_jax.nn.positions.absolute import SinusoidalPositions, sinusoids
from transformer_jax.training.optimizer import TRANSFORMS


@ATTENTION_LAYERS.register("softmax_axis")
class SoftmaxAxis(MultiHeadAttention):
    """The softmax is over the queries."""

    def normalize(self, logits, mask):  # [..., T, S]
        if mask is not None:
            logits = jnp.where(mask, logits, -1e9)
        weights = jax.nn.softmax(logits, axis=-2)
        return weights if mask is None else jnp.where(mask, weights, 0.0)


@ATTENTION_LAYERS.register("softmax_twice")
class SoftmaxTwice(MultiHeadAttention):
    """Applies the softmax to its own weights."""

    def normalize(self, logits, mask):
        return super().normalize(super().normalize(logits, mask), mask)


@ATTENTION_LAYERS.register("softmax_missing")
class SoftmaxMissing(MultiHeadAttention):
    """Scores are the weights."""

    def normalize(self, logits, mask):
        return logits if mask is None else jnp.where(mask, logits, 0.0)


@ATTENTION_LAYERS.register("mask_zero")
class MaskZero(MultiHeadAttention):
    """Sets hidden scores to 0."""

    def normalize(self, logits, mask):
        return jax.nn.softmax(logits if mask is None else jnp.where(mask, logits, 0.0))


@ATTENTION_LAYERS.register("mask_after_softmax")
class MaskAfterSoftmax(MultiHeadAttention):
    """Hides weights, not scores."""

    def normalize(self, logits, mask):
        weights = jax.nn.softmax(logits)
        return weights if mask is None else jnp.where(mask, weights, 0.0)


@ATTENTION_LAYERS.register("mask_ignored")
class MaskIgnored(MultiHeadAttention):
    """Sees all keys."""

    def normalize(self, logits, mask):
        return jax.nn.softmax(logits)


@ATTENTION_LAYERS.register("mask_inverted")
class MaskInverted(MultiHeadAttention):
    """Sees what it should not, where there is such a key."""

    def normalize(self, logits, mask):
        return jax.nn.softmax(logits if mask is None else jnp.where(mask, -1e9, logits))


@ATTENTION_LAYERS.register("causal_ahead")
class CausalAhead(MultiHeadAttention):
    """Sees one key more than the mask shows."""

    def normalize(self, logits, mask):
        if mask is not None:
            first = jnp.ones_like(mask[..., :1])
            mask = mask | jnp.concatenate([first, mask[..., :-1]], axis=-1)
        return super().normalize(logits, mask)


@ATTENTION_LAYERS.register("shared_projection")
class SharedProjection(MultiHeadAttention):
    """Keys of self-attention are the queries."""

    def projections(self, x):
        query, _, value = super().projections(x)
        return query, query, value


@POSITIONS.register("positions_from_1")
class PositionsFrom1(SinusoidalPositions):
    def embed(self, x, positions):
        return super().embed(x, positions + 1)


@POSITIONS.register("positions_exponent")
class PositionsExponent(SinusoidalPositions):
    """Waves are slower than those of the paper: exponents are doubled."""

    def embed(self, x, positions):
        pair = jnp.arange(0, self.config.d_model, 2)
        angles = positions[..., None] * 10_000.0 ** (-2 * pair / self.config.d_model)
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        return x + waves.reshape(*positions.shape, -1)


@POSITIONS.register("table_short")
class TableShort(SinusoidalPositions):
    """A table of eight positions, whose last serves all later ones."""

    def embed(self, x, positions):
        return x + sinusoids(jnp.minimum(positions, 7), self.config.d_model)


class NormOverTime(nn.Module):
    """Mean and variance are those of a feature over time, with padding."""

    epsilon: float

    @nn.compact
    def __call__(self, x):  # [N, T, D]
        mean = x.mean(axis=-2, keepdims=True)
        variance = x.var(axis=-2, keepdims=True)
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return (x - mean) * jax.lax.rsqrt(variance + self.epsilon) * scale + bias


NORMS.register("norm_axis", NormOverTime)


@TOKEN_LOSSES.register("loss_of_probabilities")
class LossOfProbabilities(TokenLoss):
    """Cross-entropy whose logits are probabilities."""

    def losses(self, logits, labels):  # [*B, V], [*B] -> [*B]
        return cross_entropy(jax.nn.softmax(logits), labels)


TRANSFORMS.register("update_sign", lambda config: optax.scale(-1.0))

"""Cross-entropy with label smoothing (section 5.4)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Logits = Float[Array | np.ndarray, "*B V"]
Labels = Int[Array | np.ndarray, "*B"]
Losses = Float[Array, "*B"]
Residuals = tuple[Logits, Labels, Float[Array, "*B"]]
"""What the backward pass reads: logits, labels and the logarithm of the softmax's denominator."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def cross_entropy(logits: Logits, labels: Labels, label_smoothing: float = 0.0) -> Losses:
    """Cross-entropy of each token against its smoothed label, in nats.

    The label keeps probability 1 - eps, and eps is spread over the whole vocabulary, eps / V each,
    the label included, as in optax and PyTorch. Neither one-hot nor smoothed targets are built.

    Args:
      logits: one for each token of the vocabulary.
      labels: the right tokens.
      label_smoothing: eps, in [0, 1).
    """
    return _forward(logits, labels, label_smoothing)[0]


def _forward(logits: Logits, labels: Labels, eps: float) -> tuple[Losses, Residuals]:
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    expected = (1 - eps) * of_label
    if eps:
        expected += eps * logits.mean(axis=-1)
    return log_normalizer - expected, (logits, labels, log_normalizer)


def _backward(
    eps: float, residuals: Residuals, cotangent: Losses
) -> tuple[Float[Array, "*B V"], None]:
    """d loss / d logits = softmax(logits) - smoothed target, in one pass over the vocabulary."""
    logits, labels, log_normalizer = residuals
    vocab_size = logits.shape[-1]
    is_label = jnp.arange(vocab_size) == labels[..., None]
    target = jnp.where(is_label, 1 - eps + eps / vocab_size, eps / vocab_size)
    probabilities = jnp.exp(logits - log_normalizer[..., None])
    return (probabilities - target) * cotangent[..., None], None


cross_entropy.defvjp(_forward, _backward)

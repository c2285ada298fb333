"""Cross-entropy with label smoothing (section 5.4)."""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def cross_entropy(logits: jax.Array, labels: jax.Array, label_smoothing: float = 0.0) -> jax.Array:
    """Cross-entropy of each token against its smoothed label.

    The label keeps probability 1 - eps and eps is spread over the whole vocabulary, eps / V each,
    the label included, as in optax and PyTorch. Neither one-hot nor smoothed targets are ever
    built.

    Args:
      logits: float32 [..., V].
      labels: int32 [...].
      label_smoothing: eps, in [0, 1).

    Returns:
      float32 [...], in nats.
    """
    return _cross_entropy(logits, labels, label_smoothing)[0]


def _cross_entropy(logits, labels, eps):
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    expected = (1 - eps) * of_label
    if eps:
        expected += eps * logits.mean(axis=-1)
    return log_normalizer - expected, log_normalizer


def _forward(logits, labels, eps):
    loss, log_normalizer = _cross_entropy(logits, labels, eps)
    return loss, (logits, labels, log_normalizer)


def _backward(eps, residuals, cotangent):
    """d loss / d logits = softmax(logits) - smoothed target, in one pass over the vocabulary."""
    logits, labels, log_normalizer = residuals
    vocab_size = logits.shape[-1]
    is_label = jnp.arange(vocab_size) == labels[..., None]
    target = jnp.where(is_label, 1 - eps + eps / vocab_size, eps / vocab_size)
    probabilities = jnp.exp(logits - log_normalizer[..., None])
    return (probabilities - target) * cotangent[..., None], None


cross_entropy.defvjp(_forward, _backward)

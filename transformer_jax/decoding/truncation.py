"""The model's distribution sharpened, cut or penalized before a token is drawn.

Axes: N rows, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.decoding.top_k import top_k as block_top_k


def penalized_logits(
    logits: Float[Array, "N V"], seen: Bool[Array, "N V"], penalty: float
) -> Float[Array, "N V"]:
    """The logits, those of the tokens seen divided by the penalty where they are positive and
    multiplied by it where they are negative (Keskar et al. 2019, section 4.1)."""
    penalized = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(seen, penalized, logits)


def truncated_logits(
    logits: Float[Array, "N V"],
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    banned_ids: tuple[int, ...] = (),
) -> Float[Array, "N V"]:
    """The logits to draw from, -inf for tokens that are never drawn.

    Args:
      logits: of the model.
      temperature: divides them; below 1 the likely becomes likelier.
      top_k: keep so many of the likeliest tokens alone (Fan et al. 2018), of equals the first.
      top_p: keep the fewest of the likeliest tokens that have so much probability together
        (Holtzman et al. 2020); applied after `top_k`.
      banned_ids: never drawn.
    """
    logits = logits / temperature
    if banned_ids:
        logits = logits.at[:, jnp.array(banned_ids)].set(-jnp.inf)
    if top_k is not None and top_k < logits.shape[-1]:
        values, ids = block_top_k(logits, top_k)
        none = jnp.full_like(logits, -jnp.inf)
        logits = jnp.put_along_axis(none, ids, values, axis=-1, inplace=False)
    if top_p is not None:
        ordered = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(ordered)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        least = jnp.where(before < top_p, ordered, jnp.inf).min(axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits

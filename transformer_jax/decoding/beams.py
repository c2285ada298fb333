"""The hypotheses of a beam search as arrays, and what is done with them.

Axes: B batch, J beams before a step (1 at the first, then K), K beams after it, V vocabulary,
L output length.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Beams:
    """The hypotheses of every sentence, best first. An empty place has the value -inf."""

    alive_tokens: Array  # int32 [B, J, L]
    alive_log_probs: Array  # float32 [B, J]
    ended_tokens: Array  # int32 [B, K, L]
    ended_scores: Array  # float32 [B, K]
    done: Array  # bool [B]: the result is certain


def no_beams(batch_size: int, beam_size: int, max_length: int, pad_id: int) -> Beams:
    """One empty alive hypothesis for each sentence, and none that ended."""
    return Beams(
        alive_tokens=jnp.full((batch_size, 1, max_length), pad_id, jnp.int32),
        alive_log_probs=jnp.zeros((batch_size, 1), jnp.float32),
        ended_tokens=jnp.full((batch_size, beam_size, max_length), pad_id, jnp.int32),
        ended_scores=jnp.full((batch_size, beam_size), -jnp.inf, jnp.float32),
        done=jnp.zeros(batch_size, bool),
    )


def keep_best(
    tokens: Int[Array, "B M L"], scores: Float[Array, "B M"], k: int
) -> tuple[Int[Array, "B K L"], Float[Array, "B K"]]:
    """The k best of M hypotheses; of equal ones the first."""
    best, kept = lax.top_k(scores, k)
    return take(tokens, kept), best


def take(x: Shaped[Array, "B M ..."], beams: Int[Array, "B K"]) -> Shaped[Array, "B K ..."]:
    """Picks the numbered ones among M beams."""
    return jnp.take_along_axis(x, beams.reshape(beams.shape + (1,) * (x.ndim - 2)), axis=1)


def write(
    tokens: Int[Array, "B J L"], position: Int[Array, ""], value: Int[Array, "B J"] | int
) -> Int[Array, "B J L"]:
    """Puts a token of each hypothesis, or one for all, at a position."""
    return tokens.at[:, :, position].set(value)


def where_rows(rows: Bool[Array, " B"], x: Beams, y: Beams) -> Beams:
    """x in the rows that are true, y in the others."""
    return jax.tree.map(
        lambda a, b: jnp.where(rows.reshape((-1,) + (1,) * (b.ndim - 1)), a, b), x, y
    )

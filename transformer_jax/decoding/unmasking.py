# SPDX-License-Identifier: Apache-2.0
"""Iterative unmasking: samples of masked diffusion (Nie et al. 2025; Ghazvininejad et al. 2019).

B rows, T tokens of a row, V vocabulary.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

Tokens = Int[Array, "B T"]

ORDERS = ("confidence", "random")


@dataclasses.dataclass(frozen=True)
class Unmasking:
    """Replaces mask tokens step by step, an equal number of them in each.

    Attributes:
      steps: passes of the model; a row with fewer masks has passes in which none becomes visible.
      order: "confidence": the tokens chosen with the highest probability become visible first;
        "random": any.
      remask: a token that became visible may be hidden again if others are surer (mask-predict).
      temperature: tokens are drawn from softmax(logits / temperature); None: the likeliest.
      banned_ids: tokens that are never chosen.
    """

    steps: int
    order: str
    remask: bool
    temperature: float | None
    banned_ids: tuple[int, ...] = ()

    def __call__(
        self,
        logits_of: Callable[[Tokens], Float[Array, "B T V"]],
        tokens: Tokens,
        mask: int,
        keys: Key[Array, " B"],
    ) -> tuple[Tokens, Float[Array, "B T"]]:
        """Fills rows. Call it under `jax.jit`.

        Returns:
          the rows without masks, and the log-probability of each token in the step in which it
          was chosen, in nats; 0 where no mask was.
        """
        is_blank = tokens == mask
        num_blanks = is_blank.sum(axis=1)
        banned = jnp.array([*self.banned_ids, mask])

        def step(i: Array, carry: tuple[Tokens, Array]) -> tuple[Tokens, Array]:
            tokens, log_probs = carry
            is_hidden = tokens == mask
            step_keys = jax.vmap(jax.random.fold_in)(keys, jnp.full(len(keys), i))
            logits = logits_of(tokens).astype(jnp.float32).at[..., banned].set(-jnp.inf)
            if self.temperature is None:
                chosen = logits.argmax(axis=-1)
            else:
                chosen = jax.vmap(jax.random.categorical)(step_keys, logits / self.temperature)
            of_chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[..., None], axis=2)
            tokens = jnp.where(is_hidden, chosen, tokens)
            log_probs = jnp.where(is_hidden, of_chosen[..., 0], log_probs)
            sureness = log_probs
            if self.order == "random":
                order_keys = jax.vmap(jax.random.fold_in)(step_keys, jnp.ones(len(keys), int))
                sureness = jax.vmap(lambda key, row: jax.random.uniform(key, row.shape))(
                    order_keys, log_probs
                )
            if not self.remask:
                sureness = jnp.where(is_hidden, sureness, jnp.inf)
            sureness = jnp.where(is_blank, sureness, -jnp.inf)
            rank = jnp.argsort(jnp.argsort(-sureness, axis=1), axis=1)
            num_visible = -(-num_blanks * (i + 1) // self.steps)
            hides = is_blank & (rank >= num_visible[:, None])
            return jnp.where(hides, mask, tokens), jnp.where(hides, 0.0, log_probs)

        return jax.lax.fori_loop(0, self.steps, step, (tokens, jnp.zeros(tokens.shape)))

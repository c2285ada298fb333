"""Sampling: outputs drawn from the model's distribution, sharpened or cut.

Axes: B batch, n samples of a sentence, N = B * n, V vocabulary, L output length.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from transformer_jax.decoding.interface import DecodeStep, Hypotheses, Memory, State


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Samples:
    """What the loop carries."""

    length: jax.Array  # int32 []: tokens in a sample that has not ended
    tokens: jax.Array  # int32 [N, L]
    log_probs: jax.Array  # float32 [N]
    ended: jax.Array  # bool [N]
    state: State  # leaves [N, ...]


def sample(
    decode_step: DecodeStep,
    logits: jax.Array,
    memory: Memory,
    state: State,
    *,
    keys: jax.Array,
    max_lengths: jax.Array,
    max_length: int,
    num_outputs: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    eos_id: int,
    pad_id: int,
    banned_ids: tuple[int, ...] = (),
) -> Hypotheses:
    """Draws `num_outputs` outputs of every sentence; meant to be called under `jax.jit`.

    A sentence's samples depend on its own key alone, not on its neighbours in the batch. They come
    back with the likeliest first; a score is log P(output) under the model itself, in nats.

    Args:
        decode_step, logits, memory, state: as for `beam_search`.
        keys: [B], a random key for each sentence.
        max_lengths: int32 [B], the longest output of each sentence, EOS included, in 1..L.
        max_length: L, the length of the arrays returned.
        num_outputs: n.
        temperature, top_k, top_p: see `truncated_logits`.
        eos_id: the token that ends an output.
        pad_id: the token that fills an output after its end.
        banned_ids: tokens never chosen.
    """
    batch_size = logits.shape[0]
    limits = jnp.repeat(jnp.clip(max_lengths, 1, max_length), num_outputs)
    keys = jax.vmap(lambda key: jax.random.split(key, num_outputs))(keys).reshape(-1)

    def draw(samples: _Samples, logits: jax.Array) -> _Samples:
        position = samples.length
        truncated = truncated_logits(logits, temperature, top_k, top_p, banned_ids)
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, position)
        chosen = jax.vmap(jax.random.categorical)(step_keys, truncated)
        of_chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], axis=1)[:, 0]
        tokens = jnp.where(samples.ended, pad_id, chosen)
        return dataclasses.replace(
            samples,
            length=position + 1,
            tokens=samples.tokens.at[:, position].set(tokens),
            log_probs=samples.log_probs + jnp.where(samples.ended, 0.0, of_chosen),
            ended=samples.ended | (chosen == eos_id) | (position + 1 >= limits),
        )

    def step(samples: _Samples) -> _Samples:
        last = jnp.take(samples.tokens, samples.length - 1, axis=1)
        logits, state = decode_step(last, memory, samples.state)
        return draw(dataclasses.replace(samples, state=state), logits)

    def repeated(x):  # [B, ...] -> [N, ...]
        return jnp.repeat(x, num_outputs, axis=0)

    rows = batch_size * num_outputs
    start = _Samples(
        length=jnp.int32(0),
        tokens=jnp.full((rows, max_length), pad_id, jnp.int32),
        log_probs=jnp.zeros(rows),
        ended=jnp.zeros(rows, bool),
        state=jax.tree.map(repeated, state),
    )
    first = draw(start, repeated(logits))
    last = lax.while_loop(lambda samples: ~samples.ended.all(), step, first)
    tokens = last.tokens.reshape(batch_size, num_outputs, max_length)
    scores, order = lax.top_k(last.log_probs.reshape(batch_size, num_outputs), num_outputs)
    return Hypotheses(jnp.take_along_axis(tokens, order[:, :, None], axis=1), scores)


def truncated_logits(
    logits: jax.Array,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    banned_ids: tuple[int, ...] = (),
) -> jax.Array:
    """The logits to draw from, -inf for what is never drawn: float [N, V] -> [N, V].

    Args:
        logits: of the model.
        temperature: divides them; below 1 the likely becomes likelier.
        top_k: only so many of the likeliest are left (Fan et al. 2018).
        top_p: only the fewest of the likeliest that have so much probability together are left
            (Holtzman et al. 2020); taken after `top_k`.
        banned_ids: never drawn.
    """
    logits = logits / temperature
    if banned_ids:
        logits = logits.at[:, jnp.array(banned_ids)].set(-jnp.inf)
    if top_k is not None and top_k < logits.shape[-1]:
        least = lax.top_k(logits, top_k)[0][:, -1:]
        logits = jnp.where(logits < least, -jnp.inf, logits)
    if top_p is not None:
        ordered = -jnp.sort(-logits, axis=-1)
        probabilities = jax.nn.softmax(ordered)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        least = jnp.where(before < top_p, ordered, jnp.inf).min(axis=-1, keepdims=True)
        logits = jnp.where(logits < least, -jnp.inf, logits)
    return logits

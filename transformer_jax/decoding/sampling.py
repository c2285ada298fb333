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
class Samples:
    """Outputs as far as they are drawn.

    Attributes:
        length: int32 [], tokens in a sample that has not ended.
        tokens: int32 [N, L], padded.
        log_probs: float32 [N], of the tokens so far under the model itself, in nats.
        ended: bool [N].
        limits: int32 [N], the longest output of each, in 1..L.
        keys: [N], a random key for each.
        drawn_before: int32 [], tokens drawn with these keys before the first of these.
        seen: bool [N, V], tokens met so far, where repetition is penalized; otherwise None.
        state: of the model.
    """

    length: jax.Array
    tokens: jax.Array
    log_probs: jax.Array
    ended: jax.Array
    limits: jax.Array
    keys: jax.Array
    drawn_before: jax.Array
    seen: jax.Array | None
    state: State


@dataclasses.dataclass(frozen=True)
class Sampler:
    """How tokens are drawn.

    Attributes:
        temperature, top_k, top_p: see `truncated_logits`.
        eos_id: the token that ends an output.
        pad_id: the token that fills an output after its end.
        banned_ids: tokens never chosen.
        repetition_penalty: of tokens met before, see `penalized_logits`; 1 leaves them alone.
    """

    temperature: float
    top_k: int | None
    top_p: float | None
    eos_id: int
    pad_id: int
    banned_ids: tuple[int, ...] = ()
    repetition_penalty: float = 1.0

    def begin(
        self,
        logits: jax.Array,
        state: State,
        *,
        keys: jax.Array,
        limits: jax.Array,
        max_length: int,
        drawn_before: jax.Array | int = 0,
        seen: jax.Array | None = None,
    ) -> Samples:
        """Draws the first token of each output from logits [N, V]."""
        rows = logits.shape[0]
        samples = Samples(
            length=jnp.int32(0),
            tokens=jnp.full((rows, max_length), self.pad_id, jnp.int32),
            log_probs=jnp.zeros(rows),
            ended=jnp.zeros(rows, bool),
            limits=jnp.clip(limits, 1, max_length),
            keys=keys,
            drawn_before=jnp.int32(drawn_before),
            seen=seen,
            state=state,
        )
        return self._draw(samples, logits)

    def extend(
        self, samples: Samples, decode_step: DecodeStep, memory: Memory, length: jax.Array
    ) -> Samples:
        """Draws tokens until the outputs have `length` of them or have all ended."""

        def step(samples: Samples) -> Samples:
            last = jnp.take(samples.tokens, samples.length - 1, axis=1)
            logits, state = decode_step(last, memory, samples.state)
            return self._draw(dataclasses.replace(samples, state=state), logits)

        def unfinished(samples: Samples) -> jax.Array:
            return (samples.length < length) & ~samples.ended.all()

        return lax.while_loop(unfinished, step, samples)

    def _draw(self, samples: Samples, logits: jax.Array) -> Samples:
        position = samples.length
        penalized = logits
        if samples.seen is not None:
            penalized = penalized_logits(logits, samples.seen, self.repetition_penalty)
        truncated = truncated_logits(
            penalized, self.temperature, self.top_k, self.top_p, self.banned_ids
        )
        draw = samples.drawn_before + position
        step_keys = jax.vmap(jax.random.fold_in, (0, None))(samples.keys, draw)
        chosen = jax.vmap(jax.random.categorical)(step_keys, truncated)
        of_chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], axis=1)[:, 0]
        tokens = jnp.where(samples.ended, self.pad_id, chosen)
        seen = samples.seen
        return dataclasses.replace(
            samples,
            length=position + 1,
            tokens=samples.tokens.at[:, position].set(tokens),
            log_probs=samples.log_probs + jnp.where(samples.ended, 0.0, of_chosen),
            ended=samples.ended | (chosen == self.eos_id) | (position + 1 >= samples.limits),
            seen=None if seen is None else seen.at[jnp.arange(len(seen)), chosen].set(True),
        )


def sample(
    decode_step: DecodeStep,
    logits: jax.Array,
    memory: Memory,
    state: State,
    sampler: Sampler,
    *,
    keys: jax.Array,
    max_lengths: jax.Array,
    max_length: int,
    num_outputs: int,
) -> Hypotheses:
    """Draws `num_outputs` outputs of every sentence; meant to be called under `jax.jit`.

    A sentence's samples depend on its own key alone, not on its neighbours in the batch. They come
    back with the likeliest first; a score is log P(output) under the model itself, in nats.

    Args:
        decode_step, logits, memory, state: as for `beam_search`.
        sampler: how to draw.
        keys: [B], a random key for each sentence.
        max_lengths: int32 [B], the longest output of each sentence, EOS included, in 1..L.
        max_length: L, the length of the arrays returned.
        num_outputs: n.
    """

    def repeated(x):  # [B, ...] -> [N, ...]
        return jnp.repeat(x, num_outputs, axis=0)

    keys = jax.vmap(lambda key: jax.random.split(key, num_outputs))(keys).reshape(-1)
    first = sampler.begin(
        repeated(logits),
        jax.tree.map(repeated, state),
        keys=keys,
        limits=repeated(max_lengths),
        max_length=max_length,
    )
    last = sampler.extend(first, decode_step, memory, max_length)
    tokens = last.tokens.reshape(-1, num_outputs, max_length)
    scores, order = lax.top_k(last.log_probs.reshape(-1, num_outputs), num_outputs)
    return Hypotheses(jnp.take_along_axis(tokens, order[:, :, None], axis=1), scores)


def penalized_logits(logits: jax.Array, seen: jax.Array, penalty: float) -> jax.Array:
    """Logits [N, V] of the tokens seen [N, V] divided by the penalty where they are positive,
    multiplied by it where they are negative (Keskar et al. 2019, section 4.1)."""
    penalized = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(seen, penalized, logits)


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

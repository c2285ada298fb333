"""Learning rates as functions of the step, which counts from 0 (section 5.3)."""

import jax.numpy as jnp
import optax


def transformer(d_model: int, warmup_steps: int, factor: float = 1.0) -> optax.Schedule:
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (equation 3).

    The paper counts its steps from 1: the n-th update takes the value at n.

    Example:
      >>> float(transformer(512, 4000)(3999))  # the peak of the base model
      0.000698...
    """
    return inverse_sqrt(factor * (d_model * warmup_steps) ** -0.5, warmup_steps)


def inverse_sqrt(peak: float, warmup_steps: int) -> optax.Schedule:
    """Linear warm-up to `peak` at update `warmup_steps`, then decay by 1 / sqrt(step)."""

    def schedule(count):
        step = jnp.asarray(count, jnp.float32) + 1
        return peak * jnp.minimum(step / warmup_steps, jnp.sqrt(warmup_steps / step))

    return schedule


def constant(peak: float, warmup_steps: int) -> optax.Schedule:
    """Linear warm-up to `peak` at update `warmup_steps`, which then stays."""
    return lambda count: peak * jnp.minimum((count + 1) / warmup_steps, 1.0)


def linear(peak: float, warmup_steps: int, decay_steps: int) -> optax.Schedule:
    """Linear warm-up to `peak`, linear decay to 0 at update `decay_steps` (Devlin et al. 2019)."""

    def schedule(count):
        left = (decay_steps - count - 1) / (decay_steps - warmup_steps)
        return peak * jnp.clip(jnp.minimum((count + 1) / warmup_steps, left), 0.0)

    return schedule


def cosine(peak: float, warmup_steps: int, decay_steps: int) -> optax.Schedule:
    """Linear warm-up to `peak`, half a cosine to 0 at `decay_steps` (Loshchilov, Hutter 2017)."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup_steps, decay_steps)
    return lambda count: schedule(count + 1)

"""Learning rates as functions of the updates done, from 0 (section 5.3)."""

import dataclasses
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import optax

from transformer_jax.registry import Registry


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

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32) + 1
        return peak * jnp.minimum(step / warmup_steps, jnp.sqrt(warmup_steps / step))

    return schedule


def constant(peak: float, warmup_steps: int) -> optax.Schedule:
    """Linear warm-up to `peak` at update `warmup_steps`, then `peak`."""
    return lambda count: peak * jnp.minimum((count + 1) / warmup_steps, 1.0)


def linear(peak: float, warmup_steps: int, decay_steps: int) -> optax.Schedule:
    """Linear warm-up to `peak`, linear decay to 0 at update `decay_steps` (Devlin et al. 2019)."""

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        left = (decay_steps - count - 1) / (decay_steps - warmup_steps)
        return peak * jnp.clip(jnp.minimum((count + 1) / warmup_steps, left), 0.0)

    return schedule


def cosine(peak: float, warmup_steps: int, decay_steps: int) -> optax.Schedule:
    """Linear warm-up to `peak`, half a cosine to 0 at `decay_steps` (Loshchilov, Hutter 2017)."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup_steps, decay_steps)
    return lambda count: schedule(count + 1)


@dataclasses.dataclass(frozen=True)
class ScheduleOptions:
    """What a schedule is made from: fields of the config's section `optimizer`, and d_model.

    Attributes:
      learning_rate: the peak; for `transformer` the factor of equation 3.
      warmup_steps: updates until the peak.
      decay_steps: updates until the end of the decay, more than `warmup_steps`.
      d_model: width of the model.
    """

    learning_rate: float
    warmup_steps: int
    decay_steps: int
    d_model: int


@dataclasses.dataclass(frozen=True)
class ScheduleKind:
    """An entry of `SCHEDULES`.

    Attributes:
      make: options -> the learning rate as a function of the updates done.
      decays: whether it ends at `decay_steps`, after which nothing is learned.
    """

    make: Callable[[ScheduleOptions], optax.Schedule]
    decays: bool = False

    @property
    def reads(self) -> Collection[str]:
        """The fields that other schedules may do without."""
        return ("optimizer.decay_steps",) if self.decays else ()


SCHEDULES: Registry[ScheduleKind] = Registry(
    "optimizer.schedule",
    {
        "transformer": ScheduleKind(
            lambda options: transformer(
                options.d_model, options.warmup_steps, factor=options.learning_rate
            )
        ),
        "inverse_sqrt": ScheduleKind(
            lambda options: inverse_sqrt(options.learning_rate, options.warmup_steps)
        ),
        "constant": ScheduleKind(
            lambda options: constant(options.learning_rate, options.warmup_steps)
        ),
        "linear": ScheduleKind(
            lambda options: linear(
                options.learning_rate, options.warmup_steps, options.decay_steps
            ),
            decays=True,
        ),
        "cosine": ScheduleKind(
            lambda options: cosine(
                options.learning_rate, options.warmup_steps, options.decay_steps
            ),
            decays=True,
        ),
    },
)
"""What `optimizer.schedule` may name.

Example:
  >>> def half_life(options):
  ...     rate = optax.exponential_decay(options.learning_rate, 10_000, decay_rate=0.5)
  ...     return lambda count: rate(count) * jnp.minimum((count + 1) / options.warmup_steps, 1.0)
  >>> SCHEDULES.register("half_life", ScheduleKind(half_life))
"""

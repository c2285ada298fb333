# SPDX-License-Identifier: Apache-2.0
"""Learning rate schedules: functions of the number of steps done, from 0 (section 5.3).

`learning_rate` is the peak, at the end of the warm-up.
"""

import dataclasses
import inspect
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
import optax

from transformer_jax.fields import Configurable
from transformer_jax.registry import Registry


def transformer(d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> optax.Schedule:
    """d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5) (equation 3), times `learning_rate`.

    The paper counts steps from 1: schedule(n - 1) is its rate at step n.

    Example:
      >>> float(transformer(512, 4000)(3999))  # the peak of the base model
      0.000698...
    """
    return inverse_sqrt(learning_rate * (d_model * warmup_steps) ** -0.5, warmup_steps)


def inverse_sqrt(learning_rate: float, warmup_steps: int) -> optax.Schedule:
    """Linear warm-up until step `warmup_steps`, then decay by 1 / sqrt(step)."""

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32) + 1
        return learning_rate * jnp.minimum(step / warmup_steps, jnp.sqrt(warmup_steps / step))

    return schedule


def constant(learning_rate: float, warmup_steps: int) -> optax.Schedule:
    """Linear warm-up until step `warmup_steps`, then a constant rate."""
    return lambda count: learning_rate * jnp.minimum((count + 1) / warmup_steps, 1.0)


def linear(
    learning_rate: float, warmup_steps: int, decay_steps: int, final_ratio: float = 0.0
) -> optax.Schedule:
    """Linear warm-up, linear decay to `learning_rate * final_ratio` at step `decay_steps` (Devlin
    et al. 2019)."""
    return wsd(learning_rate, warmup_steps, decay_steps, decay_steps - warmup_steps, final_ratio)


def wsd(
    learning_rate: float,
    warmup_steps: int,
    decay_steps: int,
    cooldown_steps: int,
    final_ratio: float = 0.0,
) -> optax.Schedule:
    """Warm-up, stable, decay (Hu et al. 2024): linear warm-up, a plateau, then linear decay to
    `learning_rate * final_ratio` in the last `cooldown_steps` before `decay_steps`.

    Until the decay begins, runs of any length have the same rates.
    """

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        left = jnp.clip((decay_steps - count - 1) / cooldown_steps, 0.0, 1.0)
        decayed = final_ratio + (1 - final_ratio) * left  # from 1 to the final ratio
        return learning_rate * jnp.minimum((count + 1) / warmup_steps, decayed)

    return schedule


def cosine(
    learning_rate: float, warmup_steps: int, decay_steps: int, final_ratio: float = 0.0
) -> optax.Schedule:
    """Linear warm-up, half a cosine to `learning_rate * final_ratio` at step `decay_steps`
    (Loshchilov and Hutter 2017)."""
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, warmup_steps, decay_steps, end_value=learning_rate * final_ratio
    )
    return lambda count: schedule(count + 1)


@dataclasses.dataclass(frozen=True)
class ScheduleOptions(Configurable):
    """Arguments of a schedule: the fields of the section `optimizer`, and `model.d_model`.

    Attributes:
      learning_rate: peak; for `transformer` the factor of equation 3.
      decay_steps: step at which the decay ends, more than `warmup_steps`.
      final_ratio: rate at the end of a decay, relative to the peak.
      cooldown_steps: steps of a final decay, at most those after warm-up.
    """

    learning_rate: float
    warmup_steps: int
    decay_steps: int
    final_ratio: float
    cooldown_steps: int
    d_model: int


@dataclasses.dataclass(frozen=True)
class ScheduleKind:
    """Entry of `SCHEDULES`.

    Attributes:
      make: function from options to a schedule (steps done -> learning rate).
      decays: the schedule ends at `decay_steps`. If its final rate is 0, nothing is learned later.
      optional: optional fields, "section.field", that it reads besides `decay_steps`; a config that
        sets others is rejected.
    """

    make: Callable[[ScheduleOptions], optax.Schedule]
    decays: bool = False
    optional: Collection[str] = ()

    @property
    def reads(self) -> Collection[str]:
        """Optional fields that this schedule reads."""
        return (*self.optional, "optimizer.decay_steps") if self.decays else self.optional


_FINAL = "optimizer.final_ratio"
_COOLDOWN = "optimizer.cooldown_steps"


def _of_options(make: Callable[..., optax.Schedule]) -> Callable[[ScheduleOptions], optax.Schedule]:
    """A function from options to the schedule whose parameters have their names."""
    names = inspect.signature(make).parameters
    return lambda options: make(**{name: getattr(options, name) for name in names})


SCHEDULES: Registry[ScheduleKind] = Registry(
    "optimizer.schedule",
    {
        "transformer": ScheduleKind(_of_options(transformer)),
        "inverse_sqrt": ScheduleKind(_of_options(inverse_sqrt)),
        "constant": ScheduleKind(_of_options(constant)),
        "linear": ScheduleKind(_of_options(linear), decays=True, optional=(_FINAL,)),
        "cosine": ScheduleKind(_of_options(cosine), decays=True, optional=(_FINAL,)),
        "wsd": ScheduleKind(_of_options(wsd), decays=True, optional=(_FINAL, _COOLDOWN)),
    },
)
"""Schedules by name, for `optimizer.schedule`.

Example:
  >>> def half_life(options):
  ...     rate = optax.exponential_decay(options.learning_rate, 10_000, decay_rate=0.5)
  ...     return lambda count: rate(count) * jnp.minimum((count + 1) / options.warmup_steps, 1.0)
  >>> SCHEDULES.register("half_life", ScheduleKind(half_life))
"""

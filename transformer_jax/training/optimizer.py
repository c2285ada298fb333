"""The optimizer (section 5.3): optax, chosen and scheduled by the config."""

import dataclasses

import jax
import optax

from transformer_jax import schedules

_NAMES = ("adam", "adamw")
_SCHEDULES = ("transformer", "inverse_sqrt", "cosine")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Adam and its learning rate; the defaults are the paper's.

    Attributes:
      name: "adam", or "adamw" with decoupled weight decay on matrices.
      schedule: "transformer" (equation 3), "inverse_sqrt" or "cosine" (see `schedules`).
      learning_rate: the peak; for "transformer" a factor of equation 3, 1 in the paper.
      warmup_steps: updates until the peak.
      decay_steps: updates until "cosine" reaches 0.
      weight_decay: of "adamw".
      clip_norm: largest global norm of the gradient; None: no clipping.
      beta1, beta2, epsilon: of Adam.

    Raises:
      ValueError: an unknown choice or a value out of range.
    """

    name: str = "adam"
    schedule: str = "transformer"
    learning_rate: float = 1.0
    warmup_steps: int = 4000
    decay_steps: int | None = None
    weight_decay: float = 0.0
    clip_norm: float | None = None
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9

    def __post_init__(self):
        for name, choices in (("name", _NAMES), ("schedule", _SCHEDULES)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, not one of {', '.join(choices)}"
                )
        if self.learning_rate <= 0 or self.warmup_steps < 1:
            raise ValueError("learning_rate and warmup_steps must be positive")
        if self.schedule == "cosine" and (self.decay_steps or 0) <= self.warmup_steps:
            raise ValueError("schedule 'cosine' asks for decay_steps beyond warmup_steps")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm is {self.clip_norm}; it must be positive, or None")
        if self.weight_decay and self.name != "adamw":
            raise ValueError("weight_decay asks for name 'adamw'")


def make_schedule(config: OptimizerConfig, d_model: int) -> optax.Schedule:
    """The learning rate as a function of the updates done."""
    peak, warmup = config.learning_rate, config.warmup_steps
    match config.schedule:
        case "transformer":
            return schedules.transformer(d_model, warmup, factor=peak)
        case "inverse_sqrt":
            return schedules.inverse_sqrt(peak, warmup)
        case _:
            return schedules.cosine(peak, warmup, config.decay_steps)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Clipping, Adam's moments, weight decay and the learning rate, in this order."""
    parts = [optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)]
    if config.clip_norm is not None:
        parts.insert(0, optax.clip_by_global_norm(config.clip_norm))
    if config.name == "adamw":
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=_is_matrix))
    return optax.chain(*parts, optax.scale_by_learning_rate(schedule))


def _is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)

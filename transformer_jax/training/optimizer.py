"""The optimizer (section 5.3): optax, chosen and scheduled by the config."""

import dataclasses
import functools
import re
from collections.abc import Callable

import jax
import optax

from transformer_jax.errors import UserError
from transformer_jax.nn.parameters import parameter_at
from transformer_jax.training import schedules

_SCHEDULES = ("transformer", "inverse_sqrt", "constant", "linear", "cosine")
_DECAYING = ("linear", "cosine")


def _adam(config):
    """Means of gradients over the roots of means of their squares (Kingma and Ba 2015)."""
    return [optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)]


def _nadam(config):
    """Adam that looks a step ahead (Dozat 2016)."""
    return [optax.scale_by_adam(config.beta1, config.beta2, config.epsilon, nesterov=True)]


def _adafactor(config):
    """Keeps of a matrix's squares their sums by row and column, and scales an update by the size of
    its parameter (Shazeer and Stern 2018)."""
    # Heads are narrow: with optax's 128 the kernels of attention would not be factored.
    factored = optax.scale_by_factored_rms(min_dim_size_to_factor=32)
    return [factored, optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms()]


def _sgd(config):
    """Sums of gradients, older ones less (Polyak 1964)."""
    return [optax.trace(config.beta1)]


def _adagrad(config):
    """Gradients over the root of the sum of their squares so far (Duchi et al. 2011)."""
    return [optax.scale_by_rss(eps=config.epsilon)]


def _rmsprop(config):
    """Gradients over the root of the mean of their squares (Tieleman and Hinton 2012)."""
    return [optax.scale_by_rms(config.beta2, config.epsilon)]


def _lion(config):
    """Signs of a mean of gradients (Chen et al. 2023); a tenth of Adam's rate suits it."""
    return [optax.scale_by_lion(config.beta1, config.beta2)]


def _muon(config):
    """Orthogonalized momentum of the matrices between embeddings and output, of the size that
    Adam's updates have (Jordan et al. 2024, Liu et al. 2025); the rest goes by Nadam."""
    return [
        optax.contrib.muon(
            learning_rate=-1.0,  # the rate and its sign come last
            beta=config.beta1,
            eps=config.epsilon,
            adam_b1=config.beta1,
            adam_b2=config.beta2,
            muon_weight_dimension_numbers=_matrices,
            consistent_rms=0.2,
        )
    ]


def _matrices(params):
    """How each kernel is one matrix, all heads together: [D, H, K] is D x HK, [H, V, D] is HV x D;
    None for parameters that are none."""

    def axes(path, leaf):
        parameter = parameter_at(jax.tree_util.keystr(path, simple=True, separator="/"))
        if parameter is None or parameter.kind != "matrix":
            return None
        every = tuple(range(leaf.ndim))
        inputs = parameter.input_axes
        return optax.contrib.MuonDimensionNumbers(every[:inputs], every[inputs:])

    return jax.tree_util.tree_map_with_path(axes, params)


SCALINGS: dict[str, Callable] = {
    "adam": _adam,
    "adamw": _adam,
    "nadam": _nadam,
    "adafactor": _adafactor,
    "sgd": _sgd,
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "lamb": _adam,
    "lion": _lion,
    "muon": _muon,
}
"""Optimizers by name: what each makes of the gradients, as a list of transformations.

The rest is common to all: clipping before, decoupled weight decay and the learning rate behind.
"lamb" scales an update last by the size of its parameter (You et al. 2020).
"""


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its learning rate; the defaults are the paper's.

    Attributes:
      name: entry of `SCALINGS`.
      schedule: "transformer" (equation 3), "inverse_sqrt", "constant", "linear" or "cosine" (see
        `schedules`).
      learning_rate: the peak; for "transformer" a factor of equation 3, 1 in the paper.
      warmup_steps: updates until the peak.
      decay_steps: updates until "linear" and "cosine" reach 0.
      weight_decay: decoupled, on matrices (Loshchilov and Hutter 2019); "adam" has none, with it
        its name is "adamw".
      clip_norm: largest global norm of the gradient; None: no clipping.
      ema_decay: of an exponential moving average of the parameters, which then is what is
        evaluated and used; None: the parameters themselves.
      frozen: a regular expression; parameters whose path it is found in keep their values, as
        "^(embedding|input|encoder)/" those of a pre-trained body.
      beta1: of the momentum; "adafactor", "adagrad" and "rmsprop" have none.
      beta2: of the squares' average; in "lion" of the momentum itself.
      epsilon: keeps from dividing by a root of 0.

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
    ema_decay: float | None = None
    frozen: str | None = None
    beta1: float = 0.9
    beta2: float = 0.98
    epsilon: float = 1e-9

    def __post_init__(self):
        for name, choices in (("name", tuple(SCALINGS)), ("schedule", _SCHEDULES)):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, not one of {', '.join(choices)}"
                )
        if self.learning_rate <= 0 or self.warmup_steps < 1:
            raise ValueError("learning_rate and warmup_steps must be positive")
        if self.schedule in _DECAYING and (self.decay_steps or 0) <= self.warmup_steps:
            raise ValueError(f"schedule {self.schedule!r} asks for decay_steps beyond warmup_steps")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise ValueError(f"clip_norm is {self.clip_norm}; it must be positive, or None")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise ValueError(f"ema_decay is {self.ema_decay}; it must lie in (0, 1), or be None")
        try:
            re.compile(self.frozen or "")
        except re.error as error:
            raise ValueError(
                f"frozen is {self.frozen!r}, no regular expression: {error}"
            ) from error
        if self.weight_decay and self.name == "adam":
            raise ValueError("weight_decay asks for name 'adamw'")


def make_schedule(config: OptimizerConfig, d_model: int) -> optax.Schedule:
    """The learning rate as a function of the updates done."""
    peak, warmup = config.learning_rate, config.warmup_steps
    match config.schedule:
        case "transformer":
            return schedules.transformer(d_model, warmup, factor=peak)
        case "inverse_sqrt":
            return schedules.inverse_sqrt(peak, warmup)
        case "constant":
            return schedules.constant(peak, warmup)
        case "linear":
            return schedules.linear(peak, warmup, config.decay_steps)
        case _:
            return schedules.cosine(peak, warmup, config.decay_steps)


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Clipping, the optimizer's own scaling, weight decay and the learning rate, in this order."""
    parts = []
    if config.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    parts += SCALINGS[config.name](config)
    if config.weight_decay or config.name == "adamw":
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=decayed))
    if config.name == "lamb":
        parts.append(optax.scale_by_trust_ratio())
    optimizer = optax.chain(*parts, optax.scale_by_learning_rate(schedule))
    if config.frozen is None:
        return optimizer
    parts = {"trained": optimizer, "frozen": optax.set_to_zero()}
    return optax.partition(parts, functools.partial(_trained_or_frozen, config.frozen))


def _trained_or_frozen(frozen: str, params):
    def part(path, _):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return "frozen" if re.search(frozen, name) else "trained"

    parts = jax.tree_util.tree_map_with_path(part, params)
    if set(jax.tree.leaves(parts)) != {"trained", "frozen"}:
        raise UserError(f"optimizer.frozen {frozen!r} is found in all parameters' paths or in none")
    return parts


def decayed(params):
    """Which parameters weight decay shrinks, by `nn.parameters`: a tree of bools."""

    def decays(path, leaf):
        parameter = parameter_at(jax.tree_util.keystr(path, simple=True, separator="/"))
        return parameter is not None and parameter.decays

    return jax.tree_util.tree_map_with_path(decays, params)

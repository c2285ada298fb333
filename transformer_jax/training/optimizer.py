# SPDX-License-Identifier: Apache-2.0
"""Optimizers (section 5.3): the registry, and the optax transformation that a config describes."""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from transformer_jax.errors import UserError
from transformer_jax.fields import Configurable
from transformer_jax.nn.layer_scan import STACKED, has_stacks, stack_layers, unstack_layers
from transformer_jax.nn.parameters import SIDE_GRADIENT, map_named, parameter_at
from transformer_jax.nn.traced_numbers import LEARNING_RATE, traced_number
from transformer_jax.ranges import PathPattern, Range, Steps, check_fields
from transformer_jax.registry import Registry
from transformer_jax.training.schedules import SCHEDULES, ScheduleOptions

Params = Any
"""Tree of parameters, or of a value for each parameter."""

Transformations = Sequence[optax.GradientTransformation]

Decay = Annotated[float, Range(0, 1, "[)")]
"""Decay of a moving average."""

_AVERAGE_RATE = 0.1  # of batch norm in most programs


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Configurable):
    """The optimizer and its learning rate; the defaults are the paper's.

    Attributes:
      name: an entry of `OPTIMIZERS`.
      schedule: an entry of `schedules.SCHEDULES`; "transformer" is equation 3.
      learning_rate: peak learning rate; for "transformer" a factor on equation 3 (1 in the paper).
      warmup_steps: steps until the peak.
      decay_steps: step at which "linear", "cosine" and "wsd" end; None: train.num_steps.
      final_ratio: final learning rate relative to the peak, for example 0.1 as for GPTs; a run can
        be extended at this rate.
      cooldown_steps: steps of the final decay of "wsd"; None: a fifth of `decay_steps`, or what
        warm-up leaves if that is less.
      plateau_patience: evaluations without a better score after which the learning rate is
        multiplied by `plateau_factor` (again after each further such period); None: never.
      plateau_factor: factor of `plateau_patience`.
      weight_decay: decoupled weight decay, on matrices and embeddings only (Loshchilov and Hutter
        2019). "adam" has none; use "adamw".
      transforms: changes of the gradient before clipping, entries of `TRANSFORMS`, separated by
        commas, in order; None: none.
      clip_norm: maximal global norm of the gradient; None: no clipping.
      ema_decay: decay of an exponential moving average of the parameters, which evaluation and
        inference then use; None: no average.
      frozen: regular expression; parameters whose path contains a match are not trained, for
        example "^(embedding|input|encoder)/" for a pre-trained body.
      beta1: decay of the momentum; unused by "adafactor" and "rmsprop".
      beta2: decay of the mean of squared gradients; in "lion" of the momentum.
      epsilon: constant added to the denominator of the update, outside the root.

    Raises:
      ValueError: an unknown choice or a value out of range.
    """

    name: str = "adam"
    schedule: str = "transformer"
    learning_rate: Annotated[float, Range(1e-12, 1e12)] = 1.0
    warmup_steps: Steps = 4000
    decay_steps: Steps | None = None
    final_ratio: Annotated[float, Range(0, 1)] = 0.0
    cooldown_steps: Steps | None = None
    plateau_patience: Steps | None = None
    plateau_factor: Annotated[float, Range(0, 1, "()")] = 0.5
    weight_decay: Annotated[float, Range(0, 100)] = 0.0
    transforms: str | None = None
    clip_norm: Annotated[float, Range(1e-12, 1e12)] | None = None
    ema_decay: Annotated[float, Range(0, 1, "()")] | None = None
    frozen: PathPattern | None = None
    beta1: Decay = 0.9
    beta2: Decay = 0.98
    epsilon: Annotated[float, Range(1e-30, 1)] = 1e-9

    def __post_init__(self) -> None:
        check_fields(self)
        if self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps is {self.decay_steps}; it must be greater than warmup_steps "
                f"{self.warmup_steps}"
            )


@dataclasses.dataclass(frozen=True)
class OptimizerKind:
    """Entry of `OPTIMIZERS`: the transformations between clipping and the learning rate.

    Attributes:
      scale: function from the section `optimizer` to the transformations before weight decay.
      reads: optional fields, "section.field", that this optimizer reads; a config that sets others
        is rejected. None: all fields.
      rescale: transformations after weight decay.
      stackable: the update of stacked layers (`nn.layer_scan`) equals that of single layers, as it
        does if the optimizer works on single elements. Otherwise layers are unstacked for it.
    """

    scale: Callable[[OptimizerConfig], Transformations]
    reads: Collection[str] | None = None
    rescale: Transformations = ()
    stackable: bool = False


def _adam(config: OptimizerConfig) -> Transformations:
    """Adam: mean gradient over the root mean squared gradient (Kingma and Ba 2015)."""
    return [optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)]


def _nadam(config: OptimizerConfig) -> Transformations:
    """Adam with Nesterov momentum (Dozat 2016)."""
    return [optax.scale_by_adam(config.beta1, config.beta2, config.epsilon, nesterov=True)]


def _adafactor(config: OptimizerConfig) -> Transformations:
    """Adafactor: mean squared gradients by row and by column of a matrix; updates are relative to
    the size of the parameter (Shazeer and Stern 2018)."""
    # Below optax's default of 128, so that attention kernels, whose heads are narrow, are factored.
    factored = optax.scale_by_factored_rms(min_dim_size_to_factor=32)
    return [factored, optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms()]


def _sgd(config: OptimizerConfig) -> Transformations:
    """Gradient descent with momentum (Polyak 1964)."""
    return [optax.trace(config.beta1)]


def _rmsprop(config: OptimizerConfig) -> Transformations:
    """RMSProp: gradient over the root mean squared gradient (Tieleman and Hinton 2012)."""
    return [optax.scale_by_rms(config.beta2, config.epsilon, eps_in_sqrt=False)]


def _lion(config: OptimizerConfig) -> Transformations:
    """Lion: sign of the momentum (Chen et al. 2023). Use a tenth of Adam's learning rate."""
    return [optax.scale_by_lion(config.beta1, config.beta2)]


def _muon(config: OptimizerConfig) -> Transformations:
    """Muon: orthogonalized momentum for the matrices of layers, scaled to the size of Adam's
    updates (Jordan et al. 2024, Liu et al. 2025); Nadam for all other parameters."""
    return [
        optax.contrib.muon(
            learning_rate=-1.0,  # `make_optimizer` applies rate and sign
            beta=config.beta1,
            eps=config.epsilon,
            adam_b1=config.beta1,
            adam_b2=config.beta2,
            muon_weight_dimension_numbers=muon_axes,
            consistent_rms=0.2,
        )
    ]


_BETA1 = "optimizer.beta1"
_BETA2 = "optimizer.beta2"
_EPSILON = "optimizer.epsilon"
_MOMENTS = (_BETA1, _BETA2, _EPSILON)
_FINAL = "optimizer.final_ratio"
_DECAY = "optimizer.weight_decay"

OPTIMIZERS: Registry[OptimizerKind] = Registry(
    "optimizer.name",
    {
        "adam": OptimizerKind(_adam, _MOMENTS, stackable=True),
        "adamw": OptimizerKind(_adam, (*_MOMENTS, _DECAY), stackable=True),
        "nadam": OptimizerKind(_nadam, (*_MOMENTS, _DECAY), stackable=True),
        "adafactor": OptimizerKind(_adafactor, (_DECAY,)),
        "sgd": OptimizerKind(_sgd, (_BETA1, _DECAY), stackable=True),
        "rmsprop": OptimizerKind(_rmsprop, (_BETA2, _EPSILON, _DECAY), stackable=True),
        # Updates are relative to the size of the parameter (You et al. 2020).
        "lamb": OptimizerKind(_adam, (*_MOMENTS, _DECAY), rescale=(optax.scale_by_trust_ratio(),)),
        "lion": OptimizerKind(_lion, (_BETA1, _BETA2, _DECAY), stackable=True),
        "muon": OptimizerKind(_muon, (*_MOMENTS, _DECAY), stackable=True),
    },
)
"""Optimizers by name, for `optimizer.name`.

Example:
  >>> def sign_descent(config):
  ...     return [optax.scale_by_sign()]
  >>> OPTIMIZERS.register("sign_descent", OptimizerKind(sign_descent))
"""


TRANSFORMS: Registry[Callable[[OptimizerConfig], optax.GradientTransformation]] = Registry(
    "optimizer.transforms", several=True
)
"""Transforms of the gradient by name: functions from the section `optimizer`. They get the
gradients of single layers (`nn.layer_scan`)."""


def make_schedule(config: OptimizerConfig, d_model: int, num_steps: int) -> optax.Schedule:
    """Makes the function from steps done to the learning rate, for a run of `num_steps`."""
    end = config.decay_steps or max(num_steps, config.warmup_steps + 1)
    options = ScheduleOptions(
        learning_rate=config.learning_rate,
        warmup_steps=config.warmup_steps,
        decay_steps=end,
        final_ratio=config.final_ratio,
        cooldown_steps=config.cooldown_steps or min(max(1, end // 5), end - config.warmup_steps),
        d_model=d_model,
        options=config.options,
    )
    return SCHEDULES.find(config.schedule).make(options)


def unfinished_decay(config: OptimizerConfig, d_model: int, num_steps: int) -> str | None:
    """Message that the last step of a run comes before its schedule ends; None if it does not."""
    kind = SCHEDULES.find(config.schedule)
    if not kind.decays and _FINAL not in kind.reads:
        return None
    last = float(jax.jit(make_schedule(config, d_model, num_steps))(num_steps - 1))
    floor = config.learning_rate * (config.final_ratio if _FINAL in kind.reads else 0)
    if last <= floor + 0.01 * config.learning_rate:
        return None
    names = ["warmup_steps"] if num_steps <= config.warmup_steps else []
    if "optimizer.decay_steps" in kind.reads and (config.decay_steps or not names):
        names.append("decay_steps")  # without a number the schedule ends at num_steps
    ends = ", ".join(f"{name} {getattr(config, name)}" for name in names)
    return (
        f"the learning rate of the last step is {last:.2g}, not {floor:.2g}: train.num_steps is "
        f"{num_steps}, but optimizer.schedule {config.schedule!r} has {ends}; lower "
        f"{'them' if len(names) > 1 else 'it'}"
        f"{' (decay_steps none: until num_steps)' if config.decay_steps else ''}"
    )


def raised_rate(
    before: OptimizerConfig, now: OptimizerConfig, d_model: int, old_steps: int, num_steps: int
) -> str | None:
    """Message that a longer run has a higher learning rate where the shorter one ended; None if it
    does not."""
    old = float(make_schedule(before, d_model, old_steps)(old_steps - 1))
    new = float(make_schedule(now, d_model, num_steps)(old_steps - 1))
    if new <= 1.01 * old:
        return None
    message = (
        f"the learning rate of step {old_steps}, where the run would have ended, is now {new:.2g}; "
        f"it was {old:.2g}, as optimizer.schedule {now.schedule!r} ended there"
    )
    if not SCHEDULES.find(now.schedule).decays:
        return message
    if not now.final_ratio:
        return f"{message} (a run with optimizer.final_ratio can be extended at its final rate)"
    end = before.decay_steps or old_steps
    return f"{message}; to stay at that rate set optimizer.decay_steps to {end}"


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Chains transforms of the gradient, clipping, the optimizer's own scaling, weight decay and
    the learning rate.

    `init` raises UserError if `config.frozen` matches all parameters or none.
    """
    kind = OPTIMIZERS.find(config.name)
    names = config.transforms.split(",") if config.transforms else []
    parts = [TRANSFORMS.find(name)(config) for name in names]
    if config.clip_norm is not None:
        parts.append(optax.clip_by_global_norm(config.clip_norm))
    parts += kind.scale(config)
    # "adamw" has this part even at 0, because the optimizer states of saved runs include it.
    if config.weight_decay or config.name == "adamw":
        parts.append(_weight_decay(config.weight_decay))
    optimizer = optax.chain(*parts, *kind.rescale, optax.scale_by_learning_rate(schedule))
    optimizer = update_statistics(optimizer)
    if config.frozen is not None:
        trained_and_frozen = {"trained": optimizer, "frozen": optax.set_to_zero()}
        labels = functools.partial(frozen_labels, config.frozen)
        return unstack_for(optax.partition(trained_and_frozen, labels))
    return optimizer if kind.stackable and not names else unstack_for(optimizer)


def _weight_decay(decay: float) -> optax.GradientTransformation:
    def update(grads: Params, state: Any, params: Params = None) -> tuple[Params, Any]:
        # Replicas may differ in it: the number is known only when the step is traced.
        traced_decay = traced_number("optimizer.weight_decay", decay)
        return optax.add_decayed_weights(traced_decay, decay_mask).update(grads, state, params)

    return optax.GradientTransformation(optax.add_decayed_weights(decay, decay_mask).init, update)


def update_statistics(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Makes an optimizer change counters by 1 against the sign of the gradient, and averages by a
    tenth of their way to what the gradient carries (`nn.parameters`).

    Other updates get the learning rate of their replica, and that of a plateau. The state is the
    same as without.
    """

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params)
        rate = traced_number(LEARNING_RATE, None)

        def step(path: str, grad: jax.Array, update: jax.Array, now: jax.Array) -> jax.Array:
            parameter = parameter_at(path)
            match parameter and parameter.kind:
                case "counter":
                    return -jnp.sign(grad)
                case "average":
                    return _AVERAGE_RATE * (-grad / SIDE_GRADIENT - now)
            return update if rate is None else rate * update

        return map_named(step, grads, updates, params), state

    return optax.GradientTransformation(optimizer.init, update)


def decay_mask(params: Params) -> Params:
    """Tree of bools: True for parameters with weight decay (`nn.parameters`)."""

    def decays(path: str, _: jax.Array) -> bool:
        parameter = parameter_at(path)
        return parameter is not None and parameter.decays

    return map_named(decays, params)


def frozen_labels(frozen: str, params: Params) -> Params:
    """Tree of labels: "frozen" for parameters whose path contains a match, else "trained".

    Raises:
      UserError: all parameters match, or none.
    """

    def label(path: str, _: jax.Array) -> str:
        return "frozen" if re.search(frozen, path) else "trained"

    labels = map_named(label, params)
    if set(jax.tree.leaves(labels)) != {"trained", "frozen"}:
        raise UserError(f"optimizer.frozen {frozen!r} matches the paths of all parameters or none")
    return labels


def count_frozen(frozen: str | None, params: Params) -> int:
    """Number of the parameters that `frozen_labels` finds; 0 for None."""
    if frozen is None:
        return 0
    labels = frozen_labels(frozen, params)
    sizes = jax.tree.map(lambda label, leaf: leaf.size * (label == "frozen"), labels, params)
    return sum(jax.tree.leaves(sizes))


def stop_frozen_gradients(frozen: str, params: Params) -> Params:
    """The same parameters; those that `frozen_labels` finds have no gradient. So the backward pass
    leaves them out, and norms of gradients are those of what is trained."""

    def stop(label: str, leaf: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(leaf) if label == "frozen" else leaf

    single = unstack_layers(params)
    stopped = jax.tree.map(stop, frozen_labels(frozen, single), single)
    return stack_layers(stopped) if has_stacks(params) else stopped


def muon_axes(params: Params) -> Params:
    """Tree of the axes that form the rows and columns of each kernel's matrix; None for parameters
    that are no kernels.

    All heads are in one matrix: [D, H, K] is D x HK, and [H, K, D] is HK x D. An axis of stacked
    layers, or of several matrices, is neither row nor column.
    """

    def axes(path: str, leaf: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        parameter = parameter_at(path)
        if parameter is None or parameter.kind not in ("matrix", "matrices"):
            return None
        skipped = (STACKED in path) + (parameter.kind == "matrices")
        matrix_axes = range(leaf.ndim)[skipped:]
        inputs = tuple(matrix_axes[: parameter.input_axes])
        outputs = tuple(matrix_axes[parameter.input_axes :])
        return optax.contrib.MuonDimensionNumbers(inputs, outputs)

    return map_named(axes, params)


def unstack_for(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Makes an optimizer see stacked layers (`nn.layer_scan`) as single layers.

    Needed if it looks at more than single elements: at the shape, norm or path of an array.
    """

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, new_state = optimizer.update(*unstack_layers((grads, state, params)))
        if not has_stacks(grads):
            return updates, new_state
        return stack_layers(updates), stack_layers(new_state)

    return optax.GradientTransformation(optimizer.init, update)

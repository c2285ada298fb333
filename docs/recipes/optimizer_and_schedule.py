# SPDX-License-Identifier: Apache-2.0
"""AdaBelief (Zhuang et al. 2020), a schedule with 1 - sqrt decay (Hägele et al. 2024), and a
transform of gradients.

    transformer_jax train --config=quickstart --workdir=runs/plateau \\
        --modules=docs/recipes/optimizer_and_schedule.py \\
        --config.optimizer.name=adabelief --config.optimizer.schedule=plateau \\
        --config.optimizer.transforms=centralize
"""

import jax
import jax.numpy as jnp
import optax

from transformer_jax.training.optimizer import OPTIMIZERS, TRANSFORMS, OptimizerKind
from transformer_jax.training.schedules import SCHEDULES, ScheduleKind

DECAY = 0.1  # share of the steps in which the rate decays


def adabelief(config):
    """Transformations of the gradient; `config` is the section `optimizer`."""
    return [optax.scale_by_belief(config.beta1, config.beta2, config.epsilon)]


def plateau(options):
    """Linear warm-up, a plateau, and 1 - sqrt decay to 0 that ends at `decay_steps`."""

    def rate(updates_done):
        rise = (updates_done + 1) / options.warmup_steps
        left = (options.decay_steps - updates_done - 1) / (DECAY * options.decay_steps)
        fall = 1 - jnp.sqrt(1 - jnp.clip(left, 0, 1))
        return options.learning_rate * jnp.minimum(rise, fall)

    return rate


def centralize(config):
    """Subtracts the mean of each row of a gradient (gradient centralization, Yong et al. 2020)."""

    def centred(gradient):
        axes = tuple(range(1, gradient.ndim))
        return gradient - gradient.mean(axes, keepdims=True) if axes else gradient

    return optax.stateless(lambda gradients, _: jax.tree.map(centred, gradients))


OPTIMIZERS.register("adabelief", OptimizerKind(adabelief))
SCHEDULES.register("plateau", ScheduleKind(plateau, decays=True))
TRANSFORMS.register("centralize", centralize)

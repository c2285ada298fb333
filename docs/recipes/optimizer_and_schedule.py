# SPDX-License-Identifier: Apache-2.0
"""AdaBelief (Zhuang et al. 2020), and a schedule with 1 - sqrt decay (Hägele et al. 2024).

    transformer_jax train --config=quickstart --workdir=runs/plateau \\
        --modules=docs/recipes/optimizer_and_schedule.py \\
        --config.optimizer.name=adabelief --config.optimizer.schedule=plateau
"""

import jax.numpy as jnp
import optax

from transformer_jax.training.optimizer import OPTIMIZERS, OptimizerKind
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


OPTIMIZERS.register("adabelief", OptimizerKind(adabelief))
SCHEDULES.register("plateau", ScheduleKind(plateau, decays=True))

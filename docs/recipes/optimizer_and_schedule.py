"""AdaBelief (Zhuang et al. 2020), and a plateau that ends as 1 - sqrt (Hägele et al. 2024).

    python -m transformer_jax train --config=configs/quickstart.py --workdir=runs/plateau \\
        --modules=docs/recipes/optimizer_and_schedule.py \\
        --config.optimizer.name=adabelief --config.optimizer.schedule=plateau
"""

import jax.numpy as jnp
import optax

from transformer_jax.training.optimizer import OPTIMIZERS, OptimizerKind
from transformer_jax.training.schedules import SCHEDULES, ScheduleKind

DECAY = 0.1  # the share of all updates in which the rate falls


def adabelief(config):
    """What turns a gradient into an update; `config` is the section `optimizer`."""
    return [optax.scale_by_belief(config.beta1, config.beta2, config.epsilon)]


def plateau(options):
    """A linear rise, a plateau, and a fall to 0, at first fast, in the last of `decay_steps`."""

    def rate(updates_done):
        rise = (updates_done + 1) / options.warmup_steps
        left = (options.decay_steps - updates_done - 1) / (DECAY * options.decay_steps)
        fall = 1 - jnp.sqrt(1 - jnp.clip(left, 0, 1))
        return options.learning_rate * jnp.minimum(rise, fall)

    return rate


OPTIMIZERS.register("adabelief", OptimizerKind(adabelief))
SCHEDULES.register("plateau", ScheduleKind(plateau, decays=True))

# SPDX-License-Identifier: Apache-2.0
"""A loss with frozen parameters: fine-tuning near the start (L2-SP, Li et al. 2018).

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/near \\
        --modules=docs/recipes/frozen_parameters.py --config.task.name=near_start \\
        --config.train.init_from=runs/lm
"""

import jax
import jax.numpy as jnp

from transformer_jax.tasks import TASKS
from transformer_jax.tasks.interface import TaskKind
from transformer_jax.tasks.language_modeling import LanguageModeling

STRENGTH = 0.01


class NearStart(LanguageModeling):
    """Language modeling plus STRENGTH times the squared distance from the run it starts from."""

    def loss(self, params, batch, rng, frozen):
        loss, weight, sums = super().loss(params, batch, rng, frozen)
        squares = jax.tree.map(lambda a, b: jnp.square(a - b).sum(), params, frozen["reference"])
        distance = weight * sum(jax.tree.leaves(squares))  # a sum over tokens, as the loss is
        return loss + STRENGTH * distance, weight, sums | {"distance": distance}

    def metrics(self, sums, examples):
        found = super().metrics(sums, examples)
        return found | {"distance": float(sums["distance"] / sums["tokens"])}


KIND = TASKS["language_modeling"]
TASKS.register(
    "near_start",
    TaskKind(NearStart.build, KIND.texts, defaults=KIND.defaults, frozen=("reference",)),
)

# SPDX-License-Identifier: Apache-2.0
"""A loss: focal loss (Lin et al. 2017), which learns less from tokens that are predicted well.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/focal \\
        --modules=docs/recipes/token_loss.py --config.train.loss=focal --config.train.focal.gamma=1
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp

from transformer_jax.losses import TOKEN_LOSSES, TokenLoss, cross_entropy
from transformer_jax.ranges import Range


@dataclasses.dataclass(frozen=True)
class FocalOptions:
    """Options of focal loss.

    Attributes:
      gamma: exponent; at 0 the loss is cross-entropy.
    """

    gamma: Annotated[float, Range(0, 10)] = 2.0


@TOKEN_LOSSES.register("focal")
class Focal(TokenLoss):
    """(1 - p)^gamma (-log p), where p is the probability of the label."""

    options = FocalOptions

    def losses(self, logits, labels):  # [*B, V], [*B] -> [*B]
        gamma = self.config.options_of(FocalOptions).gamma
        nll = cross_entropy(logits, labels)
        return (1 - jnp.exp(-nll)) ** gamma * nll

# SPDX-License-Identifier: Apache-2.0
"""A loss: focal loss (Lin et al. 2017), which learns less from tokens that are predicted well.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/focal \\
        --modules=docs/recipes/token_loss.py --config.train.loss=focal
"""

import jax.numpy as jnp

from transformer_jax.losses import TOKEN_LOSSES, TokenLoss, cross_entropy

GAMMA = 2.0  # at 0 it is cross-entropy


@TOKEN_LOSSES.register("focal")
class Focal(TokenLoss):
    """(1 - p)^gamma (-log p), where p is the probability of the label."""

    def losses(self, logits, labels):  # [*B, V], [*B] -> [*B]
        nll = cross_entropy(logits, labels)
        return (1 - jnp.exp(-nll)) ** GAMMA * nll

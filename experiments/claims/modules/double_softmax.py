# SPDX-License-Identifier: Apache-2.0
"""A loss with a mistake: cross-entropy of probabilities in place of logits, a softmax too many.

    transformer_jax train --config=tiny_shakespeare_claims --workdir=runs/two \\
        --modules=experiments/claims/modules/double_softmax.py --config.train.loss=double_softmax
"""

import jax

from transformer_jax.losses import TOKEN_LOSSES, TokenLoss, cross_entropy


@TOKEN_LOSSES.register("double_softmax")
class DoubleSoftmax(TokenLoss):
    """-log softmax(softmax(logits)) of the label; for V labels it is at least log(1 + (V-1)/e)."""

    reads = ("train.label_smoothing",)

    def losses(self, logits, labels):  # [*B, V], [*B] -> [*B]
        return cross_entropy(jax.nn.softmax(logits), labels, self.config.label_smoothing)

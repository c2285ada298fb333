# SPDX-License-Identifier: Apache-2.0
"""Dot-product attention is much faster in practice than additive attention (Vaswani et al. 2017).

    transformer_jax claim speed_of_dot_product --workdir=runs/claims

Times training steps of two Transformers that differ in their self-attention, one after the other.
The unit is the time of the additive one. In place of a seed, the measurement is repeated.
"""

import transformer_jax as tj
from transformer_jax.tools import benchmark


def seconds_per_token(layer):
    config = tj.config("tiny_shakespeare_claims", {"model.attention_layer": layer})
    return 1 / benchmark.train(config, batch_size=16, steps=10)["tokens_per_s"]


def ratio(seed):
    additive = seconds_per_token("additive")
    return seconds_per_token("multi_head") / additive, 1.0


def get_claim():
    return dict(
        statement="A step with dot-product self-attention takes less time than with additive.",
        experiment=ratio,
        rows={"dot product": {}, "additive": {}},
        metric="time of a training step, additive = 1",
        smallest=0.2,
        looks=(3, 6),
        source="Vaswani et al. 2017, section 3.2.1",
    )

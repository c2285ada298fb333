# SPDX-License-Identifier: Apache-2.0
"""Tiny Shakespeare by characters, with a model that trains in 20 seconds on one core: for claims.

    transformer_jax train --config=tiny_shakespeare_claims --workdir=runs/tiny --seeds=4

As in the paper, matrices start by Xavier's rule, so that products of queries and keys are of the
size that section 3.2.1 speaks of.
"""

from ml_collections import ConfigDict
from tiny_shakespeare import get_config as tiny_shakespeare


def get_config() -> ConfigDict:
    config = tiny_shakespeare()
    config.model = dict(
        d_model=64,
        d_ff=128,
        num_heads=4,
        num_layers=2,
        dropout_rate=0.0,
        max_length=64,
        initialization="xavier",
    )
    config.data.max_length = 64
    config.optimizer.update(learning_rate=4e-3, warmup_steps=20, decay_steps=200)
    config.train = dict(num_steps=200, tokens_per_batch=1024)
    config.eval.every_steps = 200
    config.checkpoint.every_steps = 200
    return config

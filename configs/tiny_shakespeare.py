# SPDX-License-Identifier: Apache-2.0
"""Tiny Shakespeare by characters, in the public setting: 10.8 million parameters, for a GPU.

    python -m transformer_jax train --config=configs/tiny_shakespeare.py --workdir=runs/shakespeare

This config was not trained as is. With rotary positions, dropout 0.25, batches of 2,048 characters
and parameter averaging, two runs of 9.3 and 6.1 million characters on two CPU cores reach 1.467
nats per character (experiments/results/language_models.md).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.model = dict(
        d_model=384,
        d_ff=1536,
        num_heads=6,
        num_layers=6,
        dropout_rate=0.2,
        attention_dropout_rate=0.2,
        max_length=256,
    )
    config.tokenizer = dict(kind="char", normalization="identity", vocab_size=128)
    config.data = dict(name="tiny_shakespeare", max_length=256)
    config.optimizer = dict(learning_rate=1e-3, warmup_steps=100, decay_steps=5000, beta2=0.99)
    config.train = dict(num_steps=5000, tokens_per_batch=16_384)
    config.eval = dict(every_steps=250)
    config.decode = dict(temperature=0.8, max_extra_length=500)
    config.checkpoint = dict(every_steps=250, keep=2)
    config.logging = dict(every_steps=50)
    return config

# SPDX-License-Identifier: Apache-2.0
"""Instruction tuning on Alpaca (Taori et al. 2023): a small GPT for two CPU cores.

    python -m transformer_jax train --config=configs/alpaca.py --workdir=runs/alpaca \\
        --config.data.dir=ALPACA --config.train.init_from=runs/wikitext2
    python -m transformer_jax chat --workdir=runs/alpaca

The model of wikitext2_gpt.py (the run in `train.init_from`) with longer contexts; without
`train.init_from` it starts from random parameters. After 300 steps with batches of half the size:
perplexity of answers 81.4 (experiments/results/instructions.md).
"""

from ml_collections import ConfigDict
from wikitext2_gpt import get_config as wikitext2_gpt


def get_config() -> ConfigDict:
    config = wikitext2_gpt()
    config.task = dict(name="instruction", template="alpaca")
    config.model.dropout_rate = 0.1
    config.model.max_length = 256
    config.data = dict(name="alpaca", max_length=256)
    config.optimizer = dict(learning_rate=3e-3, warmup_steps=100, decay_steps=1500)
    config.train = dict(num_steps=1500, tokens_per_batch=8192)
    config.decode = dict(beam_size=1, max_extra_length=100)
    return config

# SPDX-License-Identifier: Apache-2.0
"""The quick start's grammar with a model that trains in half a minute on one core: for claims.

    transformer_jax train --config=grammar_tiny --workdir=runs/tiny --seeds=4

Layers are scanned, because such a short run spends most of its time in compiling.
"""

from ml_collections import ConfigDict
from quickstart import get_config as quickstart


def get_config() -> ConfigDict:
    config = quickstart()
    config.model.update(d_model=64, d_ff=128, scan_layers=True)
    config.tokenizer.vocab_size = 2000
    config.data.synthetic_size = 8000
    config.optimizer.update(warmup_steps=50, decay_steps=400)
    config.train.update(num_steps=400, tokens_per_batch=512)
    config.eval.update(every_steps=400, num_examples=1)
    config.decode = dict(search="greedy")
    config.checkpoint.every_steps = 400
    return config

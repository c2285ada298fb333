# SPDX-License-Identifier: Apache-2.0
"""SST-2 (GLUE): sentiment of film reviews (Socher et al. 2013), with the encoder of bert_cpu.

    python -m transformer_jax train --config=configs/sst2.py --workdir=runs/sst2 \\
        --config.data.dir=SST-2 --config.train.init_from=runs/bert
    python -m transformer_jax evaluate --workdir=runs/sst2 --split=valid

On the 872 development sentences: accuracy 0.856, mean of three seeds of ten minutes on one
core of a Zen with AVX512-BF16 (experiments/results/language_models.md).
"""

from bert_cpu import get_config as bert_cpu
from cola import get_config as cola
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config, pretrained = cola(), bert_cpu()
    config.model = pretrained.model
    config.model.update(dropout_rate=0.2, attention_dropout_rate=0.1)
    config.tokenizer = pretrained.tokenizer
    config.data.name = "sst2"
    config.optimizer = dict(learning_rate=2e-4, warmup_steps=200, decay_steps=4000, ema_decay=0.998)
    config.train.num_steps = 4000
    config.eval.every_steps = 1000
    return config

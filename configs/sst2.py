# SPDX-License-Identifier: Apache-2.0
"""SST-2 (GLUE): sentiment of film reviews (Socher et al. 2013).

    python -m transformer_jax train --config=configs/sst2.py --workdir=runs/sst2 \\
        --config.data.dir=SST-2 --config.train.init_from=runs/bert_small
    python -m transformer_jax evaluate --workdir=runs/sst2 --split=valid

Like cola, with other data and twice the steps. On the 872 development sentences: accuracy 81.2%
from the longer bert_small run, 80.5% from scratch, six minutes each on one thread of a Xeon without
AMX.
"""

from cola import get_config as cola
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = cola()
    config.data.name = "sst2"
    config.optimizer = dict(learning_rate=5e-4, warmup_steps=200, decay_steps=2000)
    config.train.num_steps = 2000
    config.eval.every_steps = 500
    return config

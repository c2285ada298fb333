# SPDX-License-Identifier: Apache-2.0
"""Multi30k, English to German, in 25 minutes on two CPU cores: multi30k_en_de with width 192.

    transformer_jax train --config=multi30k_en_de_25min --workdir=runs/multi30k_25min

BLEU 36.93 after 23 min 4 s (experiments/results/multi30k.md).
"""

from ml_collections import ConfigDict
from multi30k_en_de import get_config as multi30k_en_de


def get_config() -> ConfigDict:
    config = multi30k_en_de()
    config.model.update(d_model=192, d_ff=384, dropout_rate=0.15)
    config.optimizer.update(learning_rate=2.5e-3, warmup_steps=400, decay_steps=5500)
    config.train.num_steps = 5500
    config.eval.every_steps = 5500
    config.checkpoint.keep_params = 3
    return config

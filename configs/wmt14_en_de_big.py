# SPDX-License-Identifier: Apache-2.0
"""The paper's big model on WMT 2014 English to German (sections 5, 6.1; table 3).

    python -m transformer_jax train --config=configs/wmt14_en_de_big.py --workdir=runs/en_de_big
    python -m transformer_jax evaluate --workdir=runs/en_de_big --split=test --average=20

Everything else, data and batches included, is as in wmt14_en_de_base. The paper: 8 P100 GPUs, 3.5
days, BLEU 28.4 on newstest2014. Not trained here.
"""

from ml_collections import ConfigDict
from wmt14_en_de_base import get_config as base


def get_config() -> ConfigDict:
    config = base()
    config.model.update(d_model=1024, d_ff=4096, num_heads=16, dropout_rate=0.3)
    config.train.num_steps = 300_000
    config.checkpoint.keep_params = 20
    return config

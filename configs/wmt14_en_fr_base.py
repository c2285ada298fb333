# SPDX-License-Identifier: Apache-2.0
"""The paper's base model on WMT 2014 English to French (sections 5, 6.1; table 2).

    python -m transformer_jax train --config=configs/wmt14_en_fr_base.py --workdir=runs/en_fr_base
    python -m transformer_jax evaluate --workdir=runs/en_fr_base --split=test --average=5

Everything else, data and batches included, is as in wmt14_en_de_base. The paper: 8 P100 GPUs, 12
hours, BLEU 38.1 on newstest2014. Not trained here.
"""

from ml_collections import ConfigDict
from wmt14_en_de_base import get_config as base


def get_config() -> ConfigDict:
    config = base()
    config.tokenizer.vocab_size = 32_000
    config.data.target_language = "fr"
    return config

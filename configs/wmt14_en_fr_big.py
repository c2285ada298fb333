# SPDX-License-Identifier: Apache-2.0
"""The paper's big model on WMT 2014 English to French (sections 5, 6.1; table 2).

    python -m transformer_jax train --config=configs/wmt14_en_fr_big.py --workdir=runs/en_fr_big
    python -m transformer_jax evaluate --workdir=runs/en_fr_big --split=test --average=20

Everything else, data and batches included, is as in wmt14_en_de_big. The paper: 8 P100 GPUs, 3.5
days, BLEU 41.8 on newstest2014 (dropout 0.1). Not trained here.
"""

from ml_collections import ConfigDict
from wmt14_en_de_big import get_config as big


def get_config() -> ConfigDict:
    config = big()
    config.model.dropout_rate = 0.1
    config.tokenizer.vocab_size = 32_000
    config.data.target_language = "fr"
    return config

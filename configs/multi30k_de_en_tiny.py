# SPDX-License-Identifier: Apache-2.0
"""Multi30k, German to English: the other direction of multi30k_en_de_lowercase.

    python -m transformer_jax train --config=configs/multi30k_de_en_tiny.py --workdir=runs/de_en
    python -m transformer_jax evaluate --workdir=runs/de_en --split=test --average=10 \\
        --beam_size=5 --alpha=1.0

Test split, one seed: BLEU 44.88 lowercased; 50 minutes on one core with AVX512-BF16.
"""

from ml_collections import ConfigDict
from multi30k_en_de_lowercase import get_config as multi30k_en_de_lowercase


def get_config() -> ConfigDict:
    config = multi30k_en_de_lowercase()
    config.data.name = "multi30k_de_en"
    return config

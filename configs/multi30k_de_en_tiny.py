# SPDX-License-Identifier: Apache-2.0
"""Multi30k, German to English: the other direction of multi30k_en_de_lowercase.

    python -m transformer_jax train --config=configs/multi30k_de_en_tiny.py --workdir=runs/de_en

Not trained to the end.
"""

from ml_collections import ConfigDict
from multi30k_en_de_lowercase import get_config as multi30k_en_de_lowercase


def get_config() -> ConfigDict:
    config = multi30k_en_de_lowercase()
    config.data.name = "multi30k_de_en"
    return config

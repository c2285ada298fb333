# SPDX-License-Identifier: Apache-2.0
"""Tatoeba, German to English, with recurrent networks and attention.

    python -m transformer_jax train --config=configs/tatoeba_de_en_rnn.py --workdir=runs/rnn \\
        --config.data.dir=FOLDER

For two CPU cores; `FOLDER` as in tatoeba_de_en.py. Not trained to the end.
"""

from ml_collections import ConfigDict
from multi30k_en_de_rnn import get_config as multi30k_en_de_rnn
from tatoeba_de_en import get_config as tatoeba_de_en


def get_config() -> ConfigDict:
    config = multi30k_en_de_rnn()
    config.model.dropout_rate = 0.2
    config.tokenizer = tatoeba_de_en().tokenizer
    config.data = tatoeba_de_en().data
    config.eval = tatoeba_de_en().eval
    config.checkpoint = tatoeba_de_en().checkpoint
    return config

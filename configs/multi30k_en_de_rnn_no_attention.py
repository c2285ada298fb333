# SPDX-License-Identifier: Apache-2.0
"""Multi30k, English to German, with recurrent networks only (Sutskever et al. 2014).

    python -m transformer_jax train --config=configs/multi30k_en_de_rnn_no_attention.py \\
        --workdir=runs/rnn_no_attention

The decoder sees only the final state of the encoder, which reads the source in reverse. For two CPU
cores. Not trained to the end; after 938 steps in the comparison of experiments/architectures.py
(with multi30k_en_de_rnn.py): BLEU 9.6 on test_2016_flickr.
"""

from ml_collections import ConfigDict
from multi30k_en_de_rnn import get_config as multi30k_en_de_rnn


def get_config() -> ConfigDict:
    config = multi30k_en_de_rnn()
    config.model.attention_score = "none"
    config.model.encoder_direction = "backward"
    return config

"""Multi30k, English to German, with recurrent networks alone (Sutskever et al. 2014): all that the
decoder knows of the source is the state in which the encoder has read it, from its end.

    python -m transformer_jax train --config=configs/multi30k_en_de_rnn_no_attention.py \\
        --workdir=runs/rnn_no_attention

For two CPU cores; beside multi30k_en_de_rnn.py. Not trained to its end yet; after 938 updates in
the comparison of experiments/architectures.py: BLEU 9.6 on test_2016_flickr.
"""

from ml_collections import ConfigDict
from multi30k_en_de_rnn import get_config as multi30k_en_de_rnn


def get_config() -> ConfigDict:
    config = multi30k_en_de_rnn()
    config.model.attention_score = "none"
    config.model.encoder_direction = "backward"
    return config

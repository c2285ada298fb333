# SPDX-License-Identifier: Apache-2.0
"""Multi30k, English to German, with recurrent networks and attention.

    python -m transformer_jax train --config=configs/multi30k_en_de_rnn.py --workdir=runs/rnn

For two CPU cores, about the size of multi30k_en_de_tiny.py. Not trained to the end; after 593 steps
in the comparison of experiments/architectures.py: BLEU 18.2 on test_2016_flickr.
"""

from ml_collections import ConfigDict
from multi30k_en_de import get_config as multi30k_en_de


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 1
    config.model = dict(
        architecture="recurrent",
        d_model=192,
        num_encoder_layers=2,
        num_decoder_layers=2,
        attention_score="additive",
        dropout_rate=0.3,
    )
    config.tokenizer = dict(kind="bpe", vocab_size=8000)
    config.data = multi30k_en_de().data
    config.optimizer = dict(
        schedule="cosine", learning_rate=2e-3, warmup_steps=300, decay_steps=6000, clip_norm=1.0
    )
    config.train = dict(num_steps=6000, tokens_per_batch=2048)
    config.eval = dict(every_steps=1000, num_examples=100)
    config.checkpoint = dict(every_steps=250, keep=2, keep_params=8)
    config.logging = dict(every_steps=50)
    return config

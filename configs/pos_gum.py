# SPDX-License-Identifier: Apache-2.0
"""Part-of-speech tags of GUM, English of many genres (46 tags), for two CPU cores.

    python -m transformer_jax train --config=configs/pos_gum.py --workdir=runs/pos_gum \\
        --config.data.dir=FOLDER
    python -m transformer_jax evaluate --workdir=runs/pos_gum --split=valid

`FOLDER` contains train.trees, dev.trees and test.trees, one bracketed tree per line. Accuracy on
the 28,119 words of dev: 92.6% (each word's most frequent tag: 86.4%). 26 minutes on one of two
threads of a core (the other was busy); after half the steps 92.0% on the first 300 sentences. On
two cores with AMX, bfloat16: 92.6% in 7 minutes.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="tagging")
    config.model = dict(
        d_model=192,
        d_ff=384,
        num_heads=4,
        num_layers=3,
        dropout_rate=0.2,
        attention_dropout_rate=0.2,
        max_length=192,
        norm_placement="pre",
        num_token_types=0,
        initialization="xavier",
    )
    config.data = dict(name="pos_gum", max_length=192)
    config.optimizer = dict(learning_rate=1.5e-3, warmup_steps=200, decay_steps=2000)
    config.train = dict(num_steps=2000, tokens_per_batch=3072, label_smoothing=0.1)
    config.eval = dict(every_steps=500, num_examples=300)
    config.checkpoint = dict(every_steps=250, keep=2)
    return config

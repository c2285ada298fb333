# SPDX-License-Identifier: Apache-2.0
"""The embedded task: an English-German grammar that trains in minutes on two CPU cores.

    make quickstart

2 minutes on two cores with AVX512-BF16, set-up and scoring included: BLEU 98.3 on unseen sentences,
97.9 on unseen word combinations (word-for-word dictionary: 14.3 and 14.8).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.model = dict(
        d_model=128,
        d_ff=256,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.1,
        norm_placement="pre",
    )
    config.tokenizer = dict(kind="bpe", vocab_size=2000)
    config.data = dict(name="synthetic_en_de", max_source_length=48, max_target_length=48)
    config.optimizer = dict(
        schedule="cosine", learning_rate=3e-3, warmup_steps=200, decay_steps=1600, clip_norm=1.0
    )
    config.train = dict(num_steps=1600, tokens_per_batch=1152)
    config.eval = dict(every_steps=800, num_examples=100)
    config.checkpoint = dict(every_steps=400, keep=2)
    config.logging = dict(every_steps=50)
    return config

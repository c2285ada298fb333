# SPDX-License-Identifier: Apache-2.0
"""Multi30k, English to German (image captions, 29,000 pairs), for two CPU cores.

    python -m transformer_jax train --config=configs/multi30k_en_de.py --workdir=runs/multi30k
    python -m transformer_jax evaluate --workdir=runs/multi30k --split=test

Two Xeon cores without AMX, float32: 64 minutes (on a shared machine). Test split
(test_2016_flickr), beam 4: BLEU 38.35 (sacreBLEU 13a, cased), 38.76 lowercased, chrF 63.2.
decode.alpha was chosen on the validation split. Learning curve, and a narrower model with 36.93
after 23 minutes: experiments/results/multi30k.md.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 1
    config.model = dict(
        d_model=256,
        d_ff=512,
        num_heads=4,
        num_encoder_layers=3,
        num_decoder_layers=3,
        dropout_rate=0.25,
        norm_placement="pre",
    )
    config.tokenizer = dict(kind="bpe", vocab_size=4000)
    config.data = dict(name="multi30k_en_de", max_source_length=64, max_target_length=64)
    config.optimizer = dict(
        schedule="cosine", learning_rate=1.5e-3, warmup_steps=500, decay_steps=9000, clip_norm=1.0
    )
    config.train = dict(num_steps=9000, tokens_per_batch=1024)
    config.eval = dict(every_steps=1500, num_examples=100)
    config.decode = dict(alpha=1.4)
    config.checkpoint = dict(every_steps=250, keep=2, keep_params=8)
    config.logging = dict(every_steps=50)
    return config

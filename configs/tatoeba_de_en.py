# SPDX-License-Identifier: Apache-2.0
"""Tatoeba, German to English (short everyday sentences, 163,000 pairs), for two CPU cores.

    python -m transformer_jax train --config=configs/tatoeba_de_en.py --workdir=runs/tatoeba \\
        --config.data.dir=FOLDER

`FOLDER` contains deu.txt of manythings.org/anki, or aligned files train.de, train.en, valid.de, ...
For the other direction: `--config.data.name=tatoeba_en_de`. Two Xeon cores without AMX, float32: 50
minutes (on a shared machine). Test split, beam 4, alpha 1.4 (chosen on validation): BLEU 46.20
(sacreBLEU 13a, cased), chrF 61.1; English to German 36.26 and 55.9.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 1
    config.model = dict(
        d_model=192,
        d_ff=384,
        num_heads=4,
        num_encoder_layers=3,
        num_decoder_layers=3,
        dropout_rate=0.1,
        norm_placement="pre",
    )
    config.tokenizer = dict(kind="bpe", vocab_size=6000)
    config.data = dict(name="tatoeba_de_en", max_source_length=64, max_target_length=64)
    config.optimizer = dict(
        schedule="cosine", learning_rate=2.5e-3, warmup_steps=400, decay_steps=6000, clip_norm=1.0
    )
    config.train = dict(num_steps=6000, tokens_per_batch=1024)
    config.eval = dict(every_steps=2000, num_examples=200)
    config.checkpoint = dict(every_steps=250, keep=2, keep_params=3)
    config.logging = dict(every_steps=50)
    return config

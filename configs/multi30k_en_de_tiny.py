# SPDX-License-Identifier: Apache-2.0
"""Multi30k, English to German, with the tiny model of the multimodal literature (Wu et al. 2021).

    python -m transformer_jax train --config=configs/multi30k_en_de_tiny.py --workdir=runs/tiny

The base of the sweeps in experiments/sweeps/, which shorten it. Test split, average of ten
checkpoints, beam 5, alpha 1.0: BLEU 40.38 lowercased, mean of three seeds (Wu et al.: 41.02).
"""

from ml_collections import ConfigDict
from multi30k_en_de import get_config as multi30k_en_de


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.model = dict(
        d_model=128,
        d_ff=256,
        num_heads=4,
        num_encoder_layers=4,
        num_decoder_layers=4,
        dropout_rate=0.3,
        norm_placement="pre",
    )
    config.tokenizer = dict(kind="bpe", vocab_size=10_000)
    config.data = multi30k_en_de().data
    config.optimizer = dict(schedule="inverse_sqrt", learning_rate=5e-3, warmup_steps=2000)
    config.train = dict(num_steps=8000, tokens_per_batch=4096)
    config.eval = dict(every_steps=500, num_examples=200)
    config.checkpoint = dict(every_steps=200, keep=2, keep_params=10)
    return config

# SPDX-License-Identifier: Apache-2.0
"""The paper's base model on WMT 2014 English to German (sections 5, 6.1; table 3).

    python -m transformer_jax train --config=configs/wmt14_en_de_base.py --workdir=runs/en_de_base
    python -m transformer_jax evaluate --workdir=runs/en_de_base --split=test --average=5

TFDS downloads and prepares the data in `data.dir`, once. Batches have about 25,000 tokens per side,
as in the paper: 96 rows of 256, divided among 8 devices. The paper: 8 P100 GPUs, 12 hours, BLEU
27.3 on newstest2014. Not trained here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.model = dict(
        d_model=512,
        d_ff=2048,
        num_heads=8,
        num_encoder_layers=6,
        num_decoder_layers=6,
        dropout_rate=0.1,
    )
    config.tokenizer = dict(kind="bpe", vocab_size=37_000)
    config.data = dict(
        name="tfds",
        tfds_name="wmt14_translate",
        source_language="en",
        target_language="de",
        max_source_length=256,
        max_target_length=256,
    )
    config.optimizer = dict(schedule="transformer", learning_rate=1.0, warmup_steps=4000)
    config.train = dict(num_steps=100_000, tokens_per_batch=24_576, label_smoothing=0.1)
    config.eval = dict(every_steps=2000, num_examples=500)
    config.checkpoint = dict(every_steps=1000, keep=2, keep_params=5)
    config.decode = dict(beam_size=4, alpha=0.6, max_extra_length=50)
    return config

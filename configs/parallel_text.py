# SPDX-License-Identifier: Apache-2.0
"""Your own parallel text: two files per split, one sentence per line.

    python -m transformer_jax train --config=configs/parallel_text.py --workdir=runs/mine \\
        --config.data.train_source=train.en --config.data.train_target=train.de \\
        --config.data.valid_source=valid.en --config.data.valid_target=valid.de \\
        --config.data.test_source=test.en   --config.data.test_target=test.de

Steps, warm-up and vocabulary are scaled to the size of the data, from hundreds to hundreds of
thousands of pairs; the values below are upper limits. For more pairs, see wmt14_en_de_base. With
`--config.train.init_from=RUN` sizes and vocabulary are those of that run.
"""

from ml_collections import ConfigDict


def get_config(init_from: str | None = None) -> ConfigDict:
    config = ConfigDict()
    if init_from is None:
        config.model = dict(
            d_model=256,
            d_ff=1024,
            num_heads=4,
            num_encoder_layers=3,
            num_decoder_layers=3,
            dropout_rate=0.2,
            norm_placement="pre",
        )
        config.tokenizer = dict(kind="bpe", vocab_size=8000)
    config.data = dict(name="parallel_text", max_source_length=96, max_target_length=96)
    config.optimizer = dict(
        schedule="inverse_sqrt", learning_rate=1.5e-3, warmup_steps=1000, clip_norm=1.0
    )
    config.train = dict(num_steps=20_000, tokens_per_batch=4608, scale_to_data=True)
    config.eval = dict(every_steps=1000, num_examples=200)
    config.checkpoint = dict(every_steps=500, keep=2, keep_params=5)
    return config

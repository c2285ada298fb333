# SPDX-License-Identifier: Apache-2.0
"""BERT-base (Devlin et al. 2019), sizes and schedule, on text of your own, for GPUs.

    python -m transformer_jax train --config=configs/bert_base.py --workdir=runs/bert \\
        --config.data.train_text="train-*.txt" --config.data.valid_text=valid.txt

Without next-sentence prediction, which Liu et al. 2019 found unnecessary. The embedding matrix is
padded from 30,522 to 30,592 rows, a multiple of 128, for the hardware. Not trained here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="masked_lm")
    config.model = dict(
        d_model=768,
        d_ff=3072,
        num_heads=12,
        num_layers=12,
        attention_dropout_rate=0.1,
        vocab_multiple=128,
    )
    config.tokenizer = dict(vocab_size=30_522, lowercase=True)
    config.data = dict(max_length=512)
    config.optimizer = dict(decay_steps=1_000_000)
    config.train = dict(num_steps=1_000_000, tokens_per_batch=131_072)
    config.eval = dict(every_steps=10_000)
    config.checkpoint = dict(every_steps=2000, keep=2)
    return config

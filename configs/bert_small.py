# SPDX-License-Identifier: Apache-2.0
"""A small BERT, pre-trained on WikiText-2 and books, for two CPU cores.

    python -m transformer_jax train --config=configs/bert_small.py --workdir=runs/bert_small \\
        --config.data.dir=WIKITEXT2,GUTENBERG

`data.dir` has the folders of the two sets, in this order. One thread of a Xeon without AMX,
float32: 50 minutes (on a shared machine); on WikiText-2's validation split, loss of masked tokens
4.565, accuracy 33.2%; 3.974 and 37.4% after 1,600 more steps (`train.init_from`), 24 minutes.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="masked_lm")
    config.model = dict(
        d_model=128,
        d_ff=512,
        num_heads=4,
        num_layers=4,
        dropout_rate=0.0,
        max_length=128,
        norm_placement="pre",
        initialization="xavier",
    )
    config.tokenizer = dict(vocab_size=8000, lowercase=True)
    config.data = dict(name="wikitext2,gutenberg", max_length=128)
    config.optimizer = dict(learning_rate=2e-3, warmup_steps=200, decay_steps=3000)
    config.train = dict(num_steps=3000, tokens_per_batch=4096)
    config.eval = dict(every_steps=500)
    config.checkpoint = dict(every_steps=250, keep=2)
    return config

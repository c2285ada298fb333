# SPDX-License-Identifier: Apache-2.0
"""A BERT to start classifiers and parsers from, pre-trained in an hour on two CPU cores.

    python -m transformer_jax train --config=configs/bert_cpu.py --workdir=runs/bert \\
        --config.data.dir=WIKITEXT2,GUTENBERG,SST-2

`data.dir` has the folders of the three sets, in this order. 6.9 million parameters, cased, rotary
positions, 49 million tokens. Two cores of a Zen with AVX512-BF16: 60 minutes; on WikiText-2's
validation split, loss of masked tokens 2.524, accuracy 53.5%.
"""

from bert_small import get_config as bert_small
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = bert_small()
    config.model.update(d_model=256, d_ff=1024, num_layers=6, positions="rotary")
    del config.model.max_length
    config.tokenizer.lowercase = False
    config.data.name = "wikitext2,gutenberg,sst2"
    config.optimizer = dict(learning_rate=1e-3, warmup_steps=500, decay_steps=12_000)
    config.train.num_steps = 12_000
    config.eval.every_steps = 2000
    config.checkpoint.every_steps = 500
    return config

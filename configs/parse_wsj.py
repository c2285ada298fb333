# SPDX-License-Identifier: Apache-2.0
"""Constituency parsing of the Wall Street Journal, as in section 6.3 of the paper.

    python -m transformer_jax train --config=configs/parse_wsj.py --workdir=runs/parse_wsj \\
        --config.data.train_text='WSJ/0[2-9]/*.mrg,WSJ/1?/*.mrg,WSJ/2[01]/*.mrg' \\
        --config.data.valid_text='WSJ/22/*.mrg' --config.data.test_text='WSJ/23/*.mrg'
    python -m transformer_jax evaluate --workdir=runs/parse_wsj --split=test

`WSJ` is the folder of the Penn Treebank (LDC99T42) with one folder per section. The paper: F1 91.3
(WSJ only), 92.7 with about 17 million sentences parsed by other parsers (add them to `train_text`
with `data.weights`). From the paper: 4 layers, d_model 1024, vocabulary 16,000, beam 21, alpha 0.3,
outputs up to 300 tokens longer than the sentence. Not in the paper: heads, d_ff (here those of its
big model) and the number of steps (a guess). Not run: the treebank is not free.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="parsing")
    config.model = dict(
        d_model=1024,
        d_ff=4096,
        num_heads=16,
        num_encoder_layers=4,
        num_decoder_layers=4,
        dropout_rate=0.3,
    )
    config.tokenizer = dict(kind="word_classes", vocab_size=16_000)
    config.data = dict(name="bracketed_trees", max_source_length=160, max_target_length=512)
    config.optimizer = dict(warmup_steps=4000)
    config.train = dict(num_steps=50_000, tokens_per_batch=25_000)
    config.eval = dict(every_steps=2000, num_examples=200)
    config.decode = dict(beam_size=21, alpha=0.3, max_extra_length=300)
    config.checkpoint = dict(every_steps=1000, keep=2, keep_params=5)
    return config

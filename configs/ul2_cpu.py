# SPDX-License-Identifier: Apache-2.0
"""A small UL2 to start translators and parsers from, pre-trained on two CPU cores.

    python -m transformer_jax train --config=configs/ul2_cpu.py --workdir=runs/ul2 \\
        --config.data.dir=WIKITEXT2,GUTENBERG

`data.dir` has the folders of the two sets, in this order. It was not trained as is.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="denoising", objective="ul2")
    config.model = dict(
        d_model=256,
        d_ff=1024,
        num_heads=4,
        num_encoder_layers=4,
        num_decoder_layers=4,
        dropout_rate=0.0,
        positions="rotary",
        norm_placement="pre",
    )
    config.tokenizer = dict(vocab_size=8000, extra_tokens=24)
    config.data = dict(name="wikitext2,gutenberg", max_length=128)
    config.optimizer = dict(learning_rate=1e-3, schedule="cosine", warmup_steps=500)
    config.train = dict(num_steps=12_000, tokens_per_batch=4096)
    config.eval = dict(every_steps=2000)
    config.checkpoint = dict(every_steps=500, keep=2)
    return config

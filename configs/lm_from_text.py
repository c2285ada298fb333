# SPDX-License-Identifier: Apache-2.0
"""A small language model of your own text.

    python -m transformer_jax train --config=configs/lm_from_text.py --workdir=runs/mine \\
        --config.data.train_text="books/*.txt" --config.data.valid_text=held_out.txt
    echo "Once upon a time" | python -m transformer_jax predict --workdir=runs/mine --stream

Use `--config.data.documents=line` if each line is a separate text. With
`--config.train.init_from=RUN` sizes and vocabulary are those of that run.
"""

from ml_collections import ConfigDict


def get_config(init_from: str | None = None) -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    if init_from is None:
        config.model = dict(
            d_model=256,
            d_ff=1024,
            num_heads=4,
            num_layers=4,
            attention_dropout_rate=0.1,
            max_length=256,
        )
        config.tokenizer = dict(vocab_size=4000)
    config.optimizer = dict(learning_rate=1e-3, warmup_steps=200)
    config.train = dict(num_steps=4000, tokens_per_batch=4096)
    config.eval = dict(every_steps=500)
    config.decode = dict(temperature=0.8, top_k=200, max_extra_length=200)
    config.checkpoint = dict(every_steps=250, keep=2)
    return config

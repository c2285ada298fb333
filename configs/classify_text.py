# SPDX-License-Identifier: Apache-2.0
"""A classifier of your own texts: a table with a column of texts and one of labels.

    python -m transformer_jax train --config=configs/classify_text.py --workdir=runs/mine \\
        --config.data.train_text=train.csv --config.data.valid_text=valid.csv \\
        --config.data.text_field=review --config.data.label_field=sentiment

Files are .csv, .tsv, .jsonl or .parquet; in a notebook a DataFrame is data, too. With
`--config.train.init_from=RUN`, or `hf:OWNER/NAME`, sizes, vocabulary and parameters are those of
that model. Training ends when the validation has not become better four times.

The 67,349 phrases of SST-2 as CSV, from scratch: accuracy 0.798 on the 872 development sentences
after 2 min 38 s of a busy machine with two Zen cores.
"""

from ml_collections import ConfigDict


def get_config(init_from: str | None = None) -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="classification")
    config.data = dict(name="table", max_length=128)
    config.optimizer = dict(learning_rate=5e-5, warmup_steps=100)
    config.train = dict(num_steps=3000, tokens_per_batch=4096)
    config.eval = dict(every_steps=200, patience=4)
    config.checkpoint = dict(every_steps=200, keep=2)
    if init_from is None:
        config.model = dict(
            d_model=128, d_ff=512, num_heads=4, num_layers=2, dropout_rate=0.2, max_length=128
        )
        config.tokenizer = dict(vocab_size=8000, lowercase=True)
        config.optimizer.learning_rate = 5e-4
    return config

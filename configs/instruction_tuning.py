# SPDX-License-Identifier: Apache-2.0
"""Instruction tuning of any language model on your own conversations.

    python -m transformer_jax import --from=hf:OWNER/NAME --workdir=runs/base
    python -m transformer_jax train --config=configs/instruction_tuning.py --workdir=runs/tuned \\
        --config.train.init_from=runs/base --config.task.template=chatml \\
        --config.data.train_text=TRAIN.jsonl --config.data.valid_text=VALID.jsonl
    python -m transformer_jax chat --workdir=runs/tuned

Each line is {"messages": [{"role": "user", "content": text}, ...]}, {"conversations": [{"from":
"human", "value": text}, ...]} or {"instruction": text, "input": text, "output": text}; .parquet
files have such rows. The section `model` is taken from the base run. Not run with a large model;
alpaca.py does the same with a small one.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="instruction", template="alpaca")
    config.data = dict(name="conversations", max_length=1024)
    config.optimizer = dict(learning_rate=2e-5, warmup_steps=100)
    config.train = dict(num_steps=2000, tokens_per_batch=16_384)
    config.eval = dict(every_steps=250)
    config.decode = dict(temperature=0.7, max_extra_length=512)
    config.checkpoint = dict(every_steps=250, keep=2)
    return config

# SPDX-License-Identifier: Apache-2.0
"""Instruction tuning of any language model with adapters (LoRA, Hu et al. 2021).

    python -m transformer_jax import --from=hf:OWNER/NAME --workdir=runs/base
    python -m transformer_jax train --config=configs/lora.py --workdir=runs/adapters \\
        --config.train.init_from=runs/base --config.task.template=chatml \\
        --config.data.train_text=TRAIN.jsonl --config.data.valid_text=VALID.jsonl
    python -m transformer_jax chat --workdir=runs/adapters

Checkpoints contain only the adapters; loading merges them into the run of `train.init_from`, which
must stay in its place and can serve any number of adapter runs. Not run with a large model;
experiments/results/instructions.md has adapters of a small one.
"""

from instruction_tuning import get_config as instruction_tuning
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = instruction_tuning()
    config.lora = dict(rank=16, alpha=32.0, dropout_rate=0.05)
    config.lora.targets = "(query|key|value|output|inner|gate|outer)/kernel$"
    config.optimizer.learning_rate = 2e-4
    return config

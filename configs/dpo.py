# SPDX-License-Identifier: Apache-2.0
"""Preference tuning: DPO (Rafailov et al. 2023) of any run that answers.

    python -m transformer_jax train --config=configs/dpo.py --workdir=runs/preferring \\
        --config.train.init_from=runs/tuned \\
        --config.data.train_text=TRAIN.jsonl --config.data.valid_text=VALID.jsonl
    python -m transformer_jax chat --workdir=runs/preferring

Each line is {"prompt": text or messages, "chosen": text or messages, "rejected": the same}. The
reference log-probabilities of the run in `train.init_from` are computed once, before the first
step, and stored in the workdir. Set `task.template` to that run's. `lora.rank` trains adapters. Not
run with a large model; experiments/results/instructions.md has a small one.
"""

from instruction_tuning import get_config as instruction_tuning
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = instruction_tuning()
    config.task = dict(name="preference", template="alpaca", beta=0.1)
    config.data.name = "preferences"
    config.optimizer = dict(learning_rate=5e-6, warmup_steps=100, decay_steps=1000)
    config.train = dict(num_steps=1000, tokens_per_batch=16_384)
    return config

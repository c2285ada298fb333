# SPDX-License-Identifier: Apache-2.0
"""The final GPT of Karpathy's lecture "Let's build GPT": 10.8 million parameters, for a GPU.

    head -c 1003854 input.txt > train.txt; tail -c +1003855 input.txt > valid.txt
    transformer_jax train --config=lecture_gpt_final --workdir=runs/lecture_final

input.txt is tiny Shakespeare. Contexts of 256, width 384, six heads and layers, dropout 0.2 also on
attention weights, rate 3e-4, 5,000 steps of 64 x 256 characters. Every 500 steps the losses of both
splits are measured without dropout, as `valid/loss` and `train/loss`. Published: validation loss
1.5225 at best, 1.5795 in a later run. Not trained to the end.
"""

from lecture_gpt import get_config as lecture_gpt
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = lecture_gpt()
    config.model.update(d_model=384, d_ff=1536, num_heads=6, num_layers=6, max_length=256)
    config.model.update(dropout_rate=0.2, attention_dropout_rate=0.2)
    config.data = dict(name="text", max_length=256)
    config.data.update(train_text="train.txt", valid_text="valid.txt,train.txt")
    config.optimizer.learning_rate = 3e-4
    config.train.tokens_per_batch = 16_384
    config.eval = dict(every_steps=500, each_corpus=True, best_corpus="valid")
    config.checkpoint.every_steps = 500
    return config

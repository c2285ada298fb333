# SPDX-License-Identifier: Apache-2.0
"""GPT-2 with 124 million parameters (Radford et al. 2019), on text of your own, for GPUs.

    python -m transformer_jax train --config=configs/gpt2_124m.py --workdir=runs/gpt2 \\
        --config.data.train_text="train-*.txt" --config.data.valid_text=valid.txt

Sizes as in the paper, optimizer settings as in GPT-3 (Brown et al. 2020, table 2.1). The vocabulary
has 50,257 tokens, four of them special (GPT-2: one); its embedding matrix is padded to 50,304 rows,
a multiple of 128, for the hardware. Attention weights have no dropout (GPT-2: 0.1), because fused
attention does not support it. Not trained to the end
(docs/devices.md).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.model = dict(
        d_model=768,
        d_ff=3072,
        num_heads=12,
        num_layers=12,
        max_length=1024,
        vocab_multiple=128,
    )
    config.tokenizer = dict(vocab_size=50_257)
    config.data = dict(max_length=1024)
    config.optimizer = dict(warmup_steps=700, decay_steps=600_000)
    config.train = dict(num_steps=600_000, tokens_per_batch=524_288, accumulation_steps=16)
    config.eval = dict(every_steps=2000)
    config.decode = dict(temperature=0.8, top_k=200, max_extra_length=500)
    config.checkpoint = dict(every_steps=1000, keep=2)
    return config

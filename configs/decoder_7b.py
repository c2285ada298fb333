# SPDX-License-Identifier: Apache-2.0
"""A 7-billion-parameter decoder in the style of LLaMA, on text of your own, for pods.

    python -m transformer_jax plan  --config=configs/decoder_7b.py --device=v5p:4x4x8 \\
        --config.parallel.fsdp=32
    python -m transformer_jax train --config=configs/decoder_7b.py --workdir=runs/decoder_7b \\
        --distributed --config.parallel.fsdp=32 \\
        --config.data.train_text="train-*.txt" --config.data.valid_text=valid.txt

Rotary positions, RMSNorm, SwiGLU, no biases (Touvron et al. 2023), and 32 heads that share 8
key-value heads (Ainslie et al. 2023): the sizes of Mistral 7B (Jiang et al. 2023) without its
window. Batches of 4 million tokens. Not trained to the end;
experiments/results/plans.md estimates its cost.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.model = dict(
        d_model=4096,
        d_ff=14_336,
        num_heads=32,
        num_key_value_heads=8,
        num_layers=32,
        dropout_rate=0.0,
        positions="rotary",
        norm="rms",
        attention_bias="none",
        activation="silu",
        gated_feed_forward=True,
        tie_embeddings="none",
    )
    config.tokenizer = dict(vocab_size=32_000)
    config.data = dict(max_length=4096)
    config.optimizer = dict(learning_rate=3e-4, warmup_steps=2000, decay_steps=250_000)
    config.train = dict(num_steps=250_000, tokens_per_batch=4_194_304, remat="full")
    config.eval = dict(every_steps=1000)
    config.decode = dict(temperature=0.8, top_k=200, max_extra_length=500)
    config.checkpoint = dict(every_steps=1000, keep=2)
    return config

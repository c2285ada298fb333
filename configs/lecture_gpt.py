# SPDX-License-Identifier: Apache-2.0
"""The GPT of Karpathy's lecture "Let's build GPT", at the size of its first steps: for claims.

    transformer_jax train --config=lecture_gpt --workdir=runs/lecture --seeds=3

Tiny Shakespeare by characters, contexts of 8, width 32, ReLU, an untied output, and a constant
learning rate without warm-up, decay or clipping. At its end the lecture scales up to contexts of
256, width 384, six layers and dropout 0.2.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.model = dict(
        d_model=32,
        d_ff=128,
        num_heads=4,
        num_layers=3,
        scan_layers=True,
        max_length=8,
        activation="relu",
        dropout_rate=0.0,
        attention_bias="output",
        tie_embeddings="none",
        logits_bias=True,
        initialization="xavier",
        scale_embeddings=True,
    )
    config.tokenizer = dict(kind="char", normalization="identity", vocab_size=128)
    config.data = dict(name="tiny_shakespeare", max_length=8)
    config.optimizer = dict(
        name="adam",
        schedule="constant",
        learning_rate=1e-3,
        warmup_steps=1,
        clip_norm=None,
        beta2=0.999,
    )
    config.train = dict(num_steps=5000, tokens_per_batch=256)
    config.eval = dict(every_steps=5000)
    config.checkpoint = dict(every_steps=5000)
    config.logging = dict(every_steps=500)
    return config

# SPDX-License-Identifier: Apache-2.0
"""Masked diffusion on Tiny Shakespeare by characters, for two CPU cores.

    python -m transformer_jax train --config=configs/diffusion_cpu.py --workdir=runs/diffusion
    echo "ROMEO:" | python -m transformer_jax predict --workdir=runs/diffusion --temperature=1

Model and steps are those of tiny_shakespeare_cpu. It was not trained as is.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="denoising", objective="diffusion")
    config.model = dict(
        architecture="encoder_only",
        d_model=128,
        d_ff=512,
        num_heads=4,
        num_layers=4,
        dropout_rate=0.0,
        positions="rotary",
        norm_placement="pre",
        num_token_types=0,
    )
    config.tokenizer = dict(kind="char", normalization="identity", vocab_size=128)
    config.data = dict(name="tiny_shakespeare", max_length=128)
    config.optimizer = dict(
        learning_rate=2e-3, schedule="cosine", warmup_steps=100, decay_steps=6000, beta2=0.99
    )
    config.train = dict(num_steps=6000, tokens_per_batch=1024)
    config.eval = dict(every_steps=1000)
    config.decode = dict(search="unmask", max_extra_length=100)
    config.decode.unmask = dict(steps=100)
    config.checkpoint = dict(every_steps=250, keep=2)
    return config

# SPDX-License-Identifier: Apache-2.0
"""A decoder of the sizes of DeepSeek-V2-Lite (2024), for pods: 16 billion parameters, of which a
token uses 2.7, and a cache of 31 kilobytes a token.

    python -m transformer_jax plan --config=configs/deepseek_v2_lite.py --device=v5p:4x4x4 \\
        --config.parallel.expert=4 --config.parallel.fsdp=16

Latent attention in all layers; a feed-forward layer in the first, 64 small experts and 2 shared
ones in the others. With `--config.model.attention_layer=multi_head` it has a cache of 221 kilobytes
a token, with `--config.model.num_key_value_heads=4` as well one of 55. Not trained here.
"""

from decoder_7b import get_config as decoder_7b
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = decoder_7b()
    config.model.update(
        d_model=2048,
        d_ff=1408,
        num_heads=16,
        num_key_value_heads=None,
        key_size=128,
        value_size=128,
        num_layers=27,
        attention_layer="latent",
        latent=dict(kv_rank=512, rotary_size=64),
        feed_forward="experts",
        experts=dict(num_experts=64, num_chosen=6, num_shared=2, renormalize=False),
        layers="feed_forward=dense d_ff=10944 | 26 x default",
    )
    config.tokenizer.vocab_size = 102_400
    return config

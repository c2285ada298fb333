# SPDX-License-Identifier: Apache-2.0
"""A modern encoder (ModernBERT, Warner et al. 2024) of the size and the data of `bert_cpu`.

    python -m transformer_jax train --config=configs/modernbert_cpu.py --workdir=runs/modernbert \\
        --config.data.dir=WIKITEXT2,GUTENBERG,SST-2

Two of three layers see 16 tokens on either side, 30% of the tokens are masked, layers are gated and
have no biases. `export` writes it for transformers.
"""

from bert_cpu import get_config as bert_cpu
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = bert_cpu()
    config.task.mask_rate = 0.3
    config.model.update(
        d_ff=704,
        activation="gelu_exact",
        gated_feed_forward=True,
        attention_bias="none",
        feed_forward_bias=False,
        head_bias=False,
        num_token_types=0,
        norm="layer_unbiased",
        norm_placement="pre",
        norm_epsilon=1e-5,
        first_norm=False,
        rope_layout="halves",
        rope_theta=160_000.0,
        rope_theta_window=10_000.0,
        attention_window=17,
        layers="attention_window=none | 2 x default",
    )
    return config

# SPDX-License-Identifier: Apache-2.0
"""A decoder of the sizes of Mixtral 8x7B (Jiang et al. 2024), for pods: 47 billion parameters, of
which a token uses 13.

    python -m transformer_jax plan  --config=configs/mixtral_8x7b.py --device=h100:32x8 \\
        --config.parallel.expert=8 --config.parallel.fsdp=32

Not trained here; experiments/results/plans.md has its plan. Experts take at most 1.25 times their
even share of a row, so that the exchange of tokens has a bound.
"""

from decoder_7b import get_config as decoder_7b
from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = decoder_7b()
    config.model.update(
        rope_theta=1e6,
        feed_forward="experts",
        experts=dict(num_experts=8, num_chosen=2, capacity_factor=1.25),
    )
    return config

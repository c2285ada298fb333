# SPDX-License-Identifier: Apache-2.0
"""WikiText-2: the GPT of wikitext2_gpt.py with 8 experts in each layer, of which a token uses 2.

    python -m transformer_jax train --config=configs/moe_cpu.py --workdir=runs/moe_cpu

Two experts are as wide as the dense layer, so that a token uses as many parameters as there, of
2.3 times as many. `metrics.jsonl` records how even the load is: `aux/balance`, which is 1 for each
of the 4 layers if it is, and the largest load of an expert in a row, `aux/load`. The dense model
beside it, of the same active size:

    python -m transformer_jax train --config=configs/wikitext2_gpt.py --workdir=runs/dense_cpu
"""

from ml_collections import ConfigDict
from wikitext2_gpt import get_config as wikitext2_gpt


def get_config() -> ConfigDict:
    config = wikitext2_gpt()
    config.model.update(
        feed_forward="experts",
        d_ff=256,
        experts=dict(num_experts=8, num_chosen=2),
    )
    return config

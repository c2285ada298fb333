# SPDX-License-Identifier: Apache-2.0
"""A small UL2 to start translators and parsers from, pre-trained on two CPU cores.

    python -m transformer_jax train --config=configs/ul2_cpu.py --workdir=runs/ul2 \\
        --config.data.dir=WIKITEXT2,GUTENBERG

Everything but the objective is as in t5_cpu. It was not trained as is.
"""

from ml_collections import ConfigDict
from t5_cpu import get_config as base


def get_config() -> ConfigDict:
    config = base()
    config.task.objective = "ul2"
    config.tokenizer.extra_tokens = 24
    return config

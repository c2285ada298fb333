# SPDX-License-Identifier: Apache-2.0
"""Parsing with a tenth of GUM's trees, with the rows of bodies_translate.py.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies_parse.py \\
        --workdir=runs/parse --config.data.dir=GUM
"""

from bodies_translate import get_sweep as translate


def get_sweep():
    sweep = translate()
    base = sweep["base"] | {
        "task.tree_words": 1000,
        "data.num_train_examples": 1022,
        "eval.num_examples": 100,
    }
    return sweep | dict(config="configs/parse_gum.py", base=base, metrics=["loss", "f1"])

# SPDX-License-Identifier: Apache-2.0
"""Part-of-speech tags of GUM: from scratch, and from the bodies of bodies.py.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies_tag.py --workdir=runs/tag \\
        --config.data.dir=GUM
"""

from bodies import encoder, starts


def get_sweep():
    base = encoder(600) | {"optimizer.learning_rate": 2e-3}
    config = "configs/pos_gum.py"
    return dict(config=config, base=base, rows=starts(), seeds=3, metrics=["loss", "accuracy"])

# SPDX-License-Identifier: Apache-2.0
"""Sentiment of SST-2: from scratch, and from the bodies of bodies.py.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies_classify.py \\
        --workdir=runs/classify --config.data.dir=SST-2
"""

from bodies import encoder, starts


def get_sweep():
    base = encoder(1500) | {"optimizer.learning_rate": 5e-4, "optimizer.ema_decay": None}
    config = "configs/sst2.py"
    return dict(config=config, base=base, rows=starts(), seeds=3, metrics=["loss", "accuracy"])

# SPDX-License-Identifier: Apache-2.0
"""Changes that public speed-runs of small GPTs found, each alone and all together.

    python -m transformer_jax sweep --sweep=experiments/sweeps/speedruns.py --workdir=runs/speedruns

Muon (Jordan et al. 2024), QK-norm, squared ReLU, a soft cap of the output logits, output
projections that start at 0, and a constant learning rate with a short decay (WSD), on tiny
Shakespeare. The base has rotary positions.
"""

ALONE = {
    "Muon": {"optimizer.name": "muon", "optimizer.beta1": 0.95},
    "QK-norm": {"model.qk_norm": True},
    "squared ReLU": {"model.activation": "squared_relu"},
    "logit cap": {"model.final_logit_cap": 15.0},
    "zero output projections": {"model.initialization": "zero_output"},
    "WSD": {"optimizer.schedule": "wsd"},
}


def get_sweep():
    together = {field: value for change in ALONE.values() for field, value in change.items()}
    base = {
        "model.positions": "rotary",
        "train.num_steps": 1500,
        "optimizer.decay_steps": 1500,
        "eval.every_steps": 500,
    }
    return dict(
        config="configs/tiny_shakespeare_cpu.py",
        base=base,
        rows={"base": {}, **ALONE, "all": together},
        seeds=3,
        metrics=["loss"],
    )

# SPDX-License-Identifier: Apache-2.0
"""Position encodings within and beyond the training length.

    python -m transformer_jax sweep --sweep=experiments/sweeps/positions.py --workdir=runs/positions

Each encoding is trained on windows of 64 characters, then scored on the same text in windows of 64,
128 and 256. Press et al. (2022) did this for sinusoids, T5's buckets, rotary positions and ALiBi.
Learned positions end at the training length and have no metrics beyond it. Sinusoids are much
larger than GPT-2's small initial embeddings; a further row has the paper's initialization and
scaled embeddings.
"""

from transformer_jax.nn.config import TransformerConfig

ENCODINGS = ("none", "learned", "sinusoidal", "relative", "t5", "deberta", "rotary", "alibi")
PAPER = {"model.initialization": "xavier", "model.scale_embeddings": True}
TRAINED = 64


def get_sweep():
    base = {
        "data.max_length": TRAINED,
        "model.max_length": TransformerConfig.max_length,
        "model.num_layers": 2,
        "train.num_steps": 600,
        "optimizer.decay_steps": 600,
        "eval.every_steps": 600,
        "checkpoint.every_steps": 600,
    }
    rows = {name: {"model.positions": name} for name in ENCODINGS}
    rows["learned"]["model.max_length"] = TRAINED
    rows["sinusoidal, scaled embeddings"] = {"model.positions": "sinusoidal"} | PAPER
    return dict(
        config="configs/tiny_shakespeare_cpu.py",
        base=base,
        rows=rows,
        seeds=3,
        metrics=["loss"],
        also={f"loss at {n * TRAINED}": {"data.max_length": n * TRAINED} for n in (2, 4)},
    )

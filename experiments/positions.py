"""Which positions let a model read further than it was trained to?

    python -m transformer_jax sweep --sweep=experiments/positions.py --workdir=runs/positions

Each encoding is trained on windows of 64 characters, then scored on the same text in windows of 64,
128 and 256. Press et al. (2022) asked this of sinusoids, T5's buckets, rotary positions and ALiBi.
A table of learned positions ends where training ended, and has no figure beyond.
"""

ENCODINGS = ("none", "learned", "sinusoidal", "relative", "t5", "deberta", "rotary", "alibi")
TRAINED = 64


def get_sweep():
    base = {
        "data.max_length": TRAINED,
        "model.max_length": TRAINED,
        "model.num_layers": 2,
        "train.num_steps": 1000,
        "optimizer.decay_steps": 1000,
        "eval.every_steps": 500,
        "checkpoint.every_steps": 500,
    }
    return dict(
        config="configs/tiny_shakespeare_cpu.py",
        base=base,
        rows={name: {"model.positions": name} for name in ENCODINGS},
        seeds=3,
        figures=["loss"],
        also={f"loss at {n * TRAINED}": {"data.max_length": n * TRAINED} for n in (2, 4)},
    )

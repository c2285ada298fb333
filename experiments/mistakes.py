# SPDX-License-Identifier: Apache-2.0
"""Trains a small translator with mistakes of docs/mistakes.md, and writes the losses of the page.

    python experiments/mistakes.py --workdir=runs/mistakes --rows="scale_missing|softmax_twice"
    python docs/write_mistakes.py

The embedded task with a model of width 64, 400 steps, three seeds. A row that is finished is not
trained again; a row that was stopped continues.
"""

import argparse
import json
import math
import re
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
from scipy import stats

import transformer_jax as tj
from transformer_jax.runs.workdir import read_metrics

SEEDS = 3
STEPS = (100, 200, 400)
BASE = {
    "model.d_model": 64,
    "model.d_ff": 128,
    "optimizer.decay_steps": 400,
    "optimizer.warmup_steps": 60,
    "train.num_steps": 400,
    "eval.every_steps": 100,
    "checkpoint.every_steps": 400,
}
SETTING = "English to German of the embedded grammar, width 64, two layers each; validation loss"
RIGHT = "none"
ATTENTION = (
    *("softmax_axis", "softmax_twice", "softmax_missing", "shared_projection", "causal_ahead"),
    *("mask_zero", "mask_after_softmax", "mask_ignored", "mask_inverted"),
)
POSITIONS = ("positions_from_1", "positions_exponent", "table_short")
ROWS = {
    RIGHT: {},
    "scale_missing": {"model.attention_scale": 1.0},
    "scale_model": {"model.attention_scale": 1 / 8},
    "scale_root": {"model.attention_scale": 1 / 16},
    "scale_inverse": {"model.attention_scale": 4.0},
    **{name: {"model.attention_layer": name} for name in ATTENTION},
    **{name: {"model.positions": name} for name in POSITIONS},
    "positions_in_blocks": {"model.positions": "sinusoidal_halves"},
    "embedding_unscaled": {"model.scale_embeddings": False},
    "norm_axis": {"model.norm": "norm_axis"},
    "norm_no_mean": {"model.norm": "rms"},
    "residual_missing": {"model.residual_connections": False},
    "dropout_missing": {"model.dropout_rate": 0.0},
    "loss_of_probabilities": {"train.loss": "loss_of_probabilities"},
    "warmup_missing": {"optimizer.warmup_steps": 1},
    "update_sign": {"optimizer.transforms": "update_sign"},
}
MODULES = Path(__file__).with_name("mistaken_parts.py")
RESULTS = Path(__file__).with_name("results") / "mistakes"


def interval(values: list[float]) -> tuple[float, float]:
    """Mean over seeds, and half the width of its 95% interval (Student's t)."""
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return round(statistics.fmean(values), 4), round(float(half), 4)


def validation_losses(workdir: Path) -> dict[int, float]:
    """Validation loss of a run by step."""
    records = read_metrics(workdir)
    return {r["step"]: r["loss"] for r in records if r.get("split") == "valid" and "loss" in r}


def write_record(name: str, folder: Path) -> None:
    """Writes the losses of a row's seeds."""
    losses = [validation_losses(folder / f"seed_{seed}") for seed in range(SEEDS)]
    record = {
        "name": name,
        "setting": SETTING,
        "seeds": SEEDS,
        "steps": STEPS,
        "losses": [interval([of_seed[step] for of_seed in losses]) for step in STEPS],
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


def draw(name: str) -> None:
    """Draws the losses of a row beside those without a mistake."""
    figure, ax = plt.subplots(figsize=(4, 2.4), layout="constrained")
    for row, label in ((RIGHT, "without"), (name, "with it")):
        record = json.loads((RESULTS / f"{row}.json").read_text())
        means, halves = zip(*record["losses"], strict=True)
        ax.errorbar(record["steps"], means, halves, label=label, marker="o", capsize=3)
    ax.set(title=name, xlabel="step", ylabel="validation loss", ylim=(0, None))
    ax.legend()
    figure.savefig(RESULTS / f"{name}.png", dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--rows", default="", help="a regular expression; default: all")
    args = parser.parse_args()
    for name in ROWS:
        if not re.fullmatch(args.rows or ".*", name):
            continue
        sweep = tj.Sweep(config="quickstart", base=BASE, rows=ROWS, seeds=SEEDS, metrics=["loss"])
        tj.sweep(sweep, args.workdir, chosen=f"^{name}$", modules=str(MODULES))
        write_record(name, args.workdir / name)
        if name != RIGHT:
            draw(name)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Prunes attention heads: BLEU by number of heads removed (Michel et al. 2019).

    python -m transformer_jax train --config=configs/multi30k_en_de_tiny.py --workdir=runs/heads \\
        --seeds=3 --config.train.num_steps=2900 --config.optimizer.warmup_steps=1000
    python -m experiments.heads --workdir=runs/heads --output=runs/heads/heads.csv

Orders the heads of each run in the workdir by importance for the validation loss: by gradient, by
ablation of each head alone, and at random for comparison. Then removes more and more of them, least
important first, and translates the test split. Writes BLEU as CSV and, beside it, the curves with
standard deviations over seeds as PNG.
"""

import argparse
import csv
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import transformer_jax as tj
from transformer_jax.data.sources import open_split
from transformer_jax.lab.pictures.style import grid, save_figure, styled
from transformer_jax.runs.run import Run
from transformer_jax.scoring.text import score_translations

Head = tuple[str, int]
"""Path of an attention's heads, and the index of one head."""

FIELDS = ["run", "order", "removed", "bleu"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True, help="holds the runs of the seeds")
    parser.add_argument("--output", type=Path, required=True, help="the CSV file")
    parser.add_argument("--points", type=int, default=9, help="of each curve")
    parser.add_argument("--split", default="test")
    args = parser.parse_args()
    workdirs = sorted(path.parent for path in args.workdir.glob("*/config.json"))
    if not workdirs:
        sys.exit(f"error: {args.workdir} holds no runs; train some with --seeds")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with args.output.open("w", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        for workdir in workdirs:
            for row in measure(tj.load(workdir), args.split, args.points):
                print(row, file=sys.stderr)
                table.writerow({"run": workdir.name, **row})
                file.flush()
    draw(args.output)


def measure(run: Run, split: str, points: int) -> Iterator[dict[str, Any]]:
    """BLEU of a run's greedy translations for each order and number of heads removed."""
    examples = open_split(run.settings.data, split)
    sources, references = ([pair[side] for pair in examples] for side in ("source", "target"))
    for order, heads in orders(run).items():
        for removed in np.linspace(0, len(heads), points).astype(int).tolist():
            pruned = without(run, heads[:removed])
            bleu = score_translations(pruned.predict(sources, beam_size=1), references)["bleu"]
            yield {"order": order, "removed": removed, "bleu": round(bleu, 2)}


def orders(run: Run) -> dict[str, list[Head]]:
    """All heads of the model, least important first, in each order."""
    found = {}
    for by in ("gradient", "switching_off"):
        print(f"{run.workdir}: importance by {by}", file=sys.stderr)
        importance = run.head_importance("valid", by)
        heads = [(place, i) for place, each in importance.items() for i in range(len(each))]
        found[by] = sorted(heads, key=lambda head: importance[head[0]][head[1]])
    shuffled = np.random.default_rng(run.settings.seed).permutation(len(heads))
    return found | {"random": [heads[i] for i in shuffled]}


def without(run: Run, heads: list[Head]) -> Run:
    """The run with heads removed: their rows of W^O are 0.

    That is what `run.patched({f"{place}[{i}]": 0, ...})` computes (tests/models/test_patches.py),
    but reuses the compiled search, which a patch would compile again.
    """
    params = run.params
    for place, head in heads:
        *path, _ = place.split(".")
        params = _with_zeros(params, [*path, "output", "kernel"], head)
    return dataclasses.replace(run, params=params)


def _with_zeros(tree: Any, path: list[str], row: int) -> Any:
    if not path:
        return tree.at[row].set(0)
    return {**tree, path[0]: _with_zeros(tree[path[0]], path[1:], row)}


def curves(table: Path) -> dict[str, pd.DataFrame]:
    """For each order of a CSV file that `main` wrote: by the number of heads removed, the mean of
    BLEU and the standard deviation over runs, 0 for a single run."""
    return {
        order: rows.groupby("removed")["bleu"].agg(["mean", "std"]).fillna(0.0)
        for order, rows in pd.read_csv(table).groupby("order", sort=False)
    }


@styled
def draw(table: Path) -> None:
    """Plots the curves of a CSV file as a PNG beside it."""
    figure, (axes,) = grid(panels=1)
    for order, bleu in curves(table).items():
        label = order.replace("_", " ")
        axes.errorbar(bleu.index, bleu["mean"], bleu["std"], label=label, capsize=3)
    axes.set_xlabel("heads removed, least important first")
    axes.set_ylabel("BLEU")
    axes.legend()
    save_figure(figure, table.with_suffix(".png"))


if __name__ == "__main__":
    try:
        main()
    except tj.UserError as error:
        sys.exit(f"error: {error}")

# SPDX-License-Identifier: Apache-2.0
"""Compares recurrent translators with and without attention and a Transformer, on Multi30k.

    python -m experiments.architectures --workdir=runs/architectures --minutes=5 --seeds=3 \\
        --data_dir=MULTI30K --output=experiments/results/architectures

A recurrent encoder-decoder without attention (Sutskever et al. 2014), one with additive attention
(Bahdanau et al. 2015) and a Transformer (Vaswani et al. 2017), of about the same size, with the
same tokenizer, batches, optimizer and schedule. Each trains for equal time (the step time is
measured first, one system after the other, and gives the number of steps that fit) and for equal
steps (those of the slowest system). Beam search translates the test split; BLEU is computed in
total and by source length (figure 2 of Bahdanau et al.). With three seeds these are nine runs of
--minutes each and six shorter ones.

Writes OUTPUT.csv (the table, also printed as Markdown), OUTPUT.png (BLEU by length, with standard
deviations over seeds) and OUTPUT_alignments.png (cross-attention of both models with attention on
one sentence pair). Results that are in the workdir are reused.
"""

import argparse
import bisect
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import transformer_jax as tj
from transformer_jax.data.sources import open_split
from transformer_jax.lab.pictures import draw_profiles, save_figure
from transformer_jax.lab.pictures.style import grid, styled
from transformer_jax.lab.sweeps.tables import Row, as_csv, as_markdown
from transformer_jax.runs.run import Run
from transformer_jax.runs.workdir import read_metrics
from transformer_jax.scoring.statistics import finite
from transformer_jax.scoring.text import score_translations

CONFIGS = Path(__file__).parents[1] / "configs"
SYSTEMS = {
    "no attention": CONFIGS / "multi30k_en_de_rnn_no_attention.py",
    "attention": CONFIGS / "multi30k_en_de_rnn.py",
    "Transformer": CONFIGS / "multi30k_en_de_tiny.py",
}
SHARED = {
    "tokenizer.vocab_size": 4000,
    "optimizer.schedule": "cosine",
    "optimizer.learning_rate": 2e-3,
    "optimizer.clip_norm": 1.0,
    "train.tokens_per_batch": 2048,
    "eval.num_examples": 50,
    "decode.alpha": 1.0,
    "logging.every_steps": 10,
    "checkpoint.keep": 1,
    "checkpoint.keep_params": 1,
}
"""Settings of all systems; only the models come from the config files."""
MEASURED = 60
"""Steps of a speed measurement."""
LENGTHS = (8, 10, 12, 15, 19)
"""Bounds of the buckets of source length, in words: scores are reported by bucket."""
EQUAL = ("time", "updates")
SCORES = "scores.json"
type Speed = dict[str, float]
"""{"step_ms" and "tokens_per_s": number}."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, required=True, help="of the runs")
    parser.add_argument("--output", type=Path, required=True, help="the results, without ending")
    parser.add_argument("--data_dir", help="a folder with the files of Multi30k")
    parser.add_argument("--minutes", type=float, default=5, help="of training, for equal time")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    changes = SHARED | {"data.dir": args.data_dir}
    speeds = measured(args.workdir, changes)
    updates = plan(args.workdir, 60 * args.minutes, speeds)
    rows, runs = [], {}
    for equal, counts in updates.items():
        for system, count in counts.items():
            found = []
            for seed in range(args.seeds):
                run = trained(args.workdir, system, count, changes | {"seed": seed})
                runs.setdefault(system, run)
                found.append(scored(run))
            rows.append(row(f"equal {equal}: {system}", found, speeds[system]))
    print(as_markdown(rows), f"written to {args.output}.csv and beside it", sep="\n")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".csv").write_text(as_csv(rows))
    draw_lengths(rows, args.output.with_suffix(".png"))
    path = args.output.with_name(f"{args.output.name}_alignments.png")
    draw_alignments({name: run for name, run in runs.items() if name != "no attention"}, path)


def measured(workdir: Path, changes: Mapping[str, Any]) -> dict[str, Speed]:
    """Measures each system over the last two thirds of a short run, before other training."""
    kept_in = workdir / "speeds.json"
    if kept_in.exists():
        return json.loads(kept_in.read_text())
    speeds = {}
    for system in SYSTEMS:
        run = trained(workdir / "speed", system, MEASURED, {**changes, "seed": 0})
        records = [record for record in read_metrics(run.workdir) if "step_ms" in record]
        kept = records[len(records) // 3 :]
        speeds[system] = {
            name: statistics.median(record[name] for record in kept)
            for name in ("step_ms", "tokens_per_s")
        }
    kept_in.write_text(json.dumps(speeds))
    return speeds


def plan(workdir: Path, seconds: float, speeds: Mapping[str, Speed]) -> dict[str, dict[str, int]]:
    """Returns {"time" and "updates": {system: steps}}, planned once per workdir."""
    kept = workdir / "updates.json"
    if not kept.exists():
        times = {system: speed["step_ms"] for system, speed in speeds.items()}
        counts = {system: max(1, round(1e3 * seconds / ms)) for system, ms in times.items()}
        fewest = dict.fromkeys(counts, min(counts.values()))
        kept.write_text(json.dumps(dict(zip(EQUAL, (counts, fewest), strict=True))))
    return json.loads(kept.read_text())


def trained(workdir: Path, system: str, updates: int, changes: Mapping[str, Any]) -> Run:
    """Returns the run of a system with this number of steps; trains it if missing."""
    folder = workdir / f"{system.replace(' ', '_')}_{updates}" / f"seed_{changes['seed']}"
    print(folder, file=sys.stderr)
    own = dict.fromkeys(("train.num_steps", "eval.every_steps", "checkpoint.every_steps"), updates)
    own |= {"optimizer.decay_steps": updates, "optimizer.warmup_steps": min(300, updates // 4)}
    return tj.train(tj.config(SYSTEMS[system], {**changes, **own}), folder)


def scored(run: Run) -> dict[str, Any]:
    """Scores a run on the test split, in total and by length; adds its size."""
    kept = run.workdir / SCORES
    if not kept.exists():
        pairs = open_split(run.settings.data, "test")
        sources, references = ([pair[side] for pair in pairs] for side in ("source", "target"))
        scores = {
            "updates": run.step,
            "bleu": score_by_length(sources, run.predict(sources), references),
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(run.params)),
        }
        kept.write_text(json.dumps(scores))
    return json.loads(kept.read_text())


def score_by_length(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str]
) -> dict[str, float]:
    """BLEU of all sentences, and by number of words of the source, such as "1-8 words"; groups
    without examples are left out."""
    groups: dict[str, list[int]] = {"BLEU": [*range(len(sources))]}
    lowest = [1, *(bound + 1 for bound in LENGTHS)]
    names = [f"{low}-{high} words" for low, high in zip(lowest, LENGTHS, strict=False)]
    names.append(f"{lowest[-1]}+ words")
    groups |= {name: [] for name in names}
    for index, source in enumerate(sources):
        groups[names[bisect.bisect_left(LENGTHS, len(source.split()))]].append(index)
    return {
        name: score_translations([outputs[i] for i in rows], [references[i] for i in rows])["bleu"]
        for name, rows in groups.items()
        if rows
    }


def row(name: str, found: Sequence[Mapping[str, Any]], speed: Speed) -> Row:
    """Row of the table, from the scores of the seeds."""
    metrics = {"updates": [one["updates"] for one in found]}
    metrics |= {each: [one["bleu"][each] for one in found] for each in found[0]["bleu"]}
    return Row(
        name=name,
        metrics=metrics,
        parameters=found[0]["parameters"],
        tokens_per_s=speed["tokens_per_s"],
        seconds=sum(one["updates"] for one in found) * speed["step_ms"] / 1e3,
    )


def draw_lengths(rows: Sequence[Row], output: Path) -> None:
    """Plots BLEU by source length, one panel for equal time and one for equal steps."""
    lengths = [name for name in rows[0].metrics if name.endswith(" words")]
    panels: dict[str, dict[str, list[float]]] = {}
    for of_system in rows:
        panel, _, system = of_system.name.partition(": ")
        values = [finite(of_system.measured(name)) for name in lengths]
        panels.setdefault(panel, {})[system] = values
    names = [name.removesuffix(" words") for name in lengths]
    save_figure(draw_profiles(panels, names, "words of the source", "BLEU"), output)


@styled
def draw_alignments(runs: Mapping[str, Run], output: Path) -> None:
    """Plots each run's cross-attention on the first test pair of 12 to 15 words: the mean of the
    heads of its last layer."""
    figure, axes = grid(len(runs), height=3.2)
    for (name, run), ax in zip(runs.items(), axes, strict=True):
        pairs = open_split(run.settings.data, "test")
        pair = next(one for one in pairs if 12 <= len(one["source"].split()) <= 15)
        found = run.attention(pair["source"], pair["target"])
        # Row t: attention while predicting the token after t.
        written = [*found.tokens["decoder"][1:], "end"]
        weights = found.weights("cross")[-1].mean(axis=0)
        ax.grid(False)
        ax.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        marks = found.tokens["encoder"]
        ax.set_xticks(range(len(marks)), marks, rotation=90, fontsize=6, parse_math=False)
        ax.set_yticks(range(len(written)), written, fontsize=6, parse_math=False)
        ax.set_title(name)
    save_figure(figure, output)


if __name__ == "__main__":
    try:
        main()
    except tj.UserError as error:
        sys.exit(f"error: {error}")

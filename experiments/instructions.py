# SPDX-License-Identifier: Apache-2.0
"""Instruction tuning of a small language model: all parameters, adapters, and then DPO.

    python -m transformer_jax train --config=configs/wikitext2_gpt.py --workdir=runs/base \\
        --config.data.name=wikitext2,gutenberg --config.data.dir=WIKITEXT2,GUTENBERG \\
        --config.model.max_length=256 --config.data.max_length=256 \\
        --config.train.num_steps=4000 --config.optimizer.decay_steps=4000
    python -m experiments.instructions --base=runs/base --workdir=runs/instructions \\
        --data_dir=ALPACA --steps=300 --examples=20000 --output=experiments/results/instructions

Tunes the base on Alpaca with all parameters and with adapters (LoRA, Hu et al. 2021), and trains
the same model on Alpaca from scratch, with equal steps and batches. Measures the perplexity of the
answers in the test split, of the untuned base too. Then DPO (Rafailov et al. 2023) trains each
fully tuned run to prefer the answers of the data set to its own greedy ones; measures the margin
between both on instructions of the test split.

Writes OUTPUT.csv (the table, also printed as Markdown) and OUTPUT_answers.md (answers of the first
seed to the first instructions of the test split). Results that are in the workdir are reused.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import transformer_jax as tj
from transformer_jax.checkpoints.step_folder import PARAMS, TRAINING, saved_arrays
from transformer_jax.conversations import conversation_from_json
from transformer_jax.data.sources import open_split
from transformer_jax.lab.sweeps.tables import Row, as_csv, as_markdown
from transformer_jax.runs.run import Run
from transformer_jax.runs.workdir import CHECKPOINTS, TOKENIZER, read_metrics

CONFIGS = Path(__file__).parents[1] / "configs"
FROM_NOTHING, WHOLE, ADAPTERS, PREFERRING = "from nothing", "all parameters", "adapters", "DPO"
OWN: dict[str, dict[str, Any]] = {
    FROM_NOTHING: {"train.init_from": None, "tokenizer.kind": "file"},
    WHOLE: {},
    ADAPTERS: {
        "lora.rank": 16,
        "lora.alpha": 32.0,
        "lora.targets": "(query|key|value|output|inner|outer)/kernel$",
        "optimizer.learning_rate": 5e-3,
    },
}
"""Settings of each kind of tuning, on top of configs/alpaca.py."""
MEASURED = ("perplexity", "accuracy")
PREFERENCES = ("margin", "accuracy", "chosen_reward", "rejected_reward")
PAIRS = {"train": 400, "valid": 50, "test": 100}
SHOWN = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, required=True, help="a run of a language model")
    parser.add_argument("--workdir", type=Path, required=True, help="of the runs")
    parser.add_argument("--output", type=Path, required=True, help="the results, without ending")
    parser.add_argument("--data_dir", help="a folder with alpaca_data.jsonl")
    parser.add_argument("--steps", type=int, default=300, help="updates of each run")
    parser.add_argument("--examples", type=int, help="to train on; all of them")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    data = {"data.dir": args.data_dir}
    base = tj.load(args.base)
    alpaca = {"task.name": "instruction", "task.template": "alpaca", "data.name": "alpaca"}
    untuned = base.with_config(alpaca | data | {"data.max_length": 256})
    scores = scored(untuned, MEASURED, args.workdir / "untuned.json")
    metrics = {name: [value] for name, value in scores.items()}
    first = {"untuned": untuned}
    rows = [Row("untuned", metrics, _size(untuned), 0.0, 0.0)]
    for way, own in OWN.items():
        runs = [tuned(args, way, {**data, **own, "seed": seed}) for seed in range(args.seeds)]
        first[way] = runs[0]
        rows.append(row(way, runs, [scored(run, MEASURED) for run in runs]))
    preferring = [preferred(args, seed) for seed in range(args.seeds)]
    first[PREFERRING] = preferring[0]
    rows.append(row(PREFERRING, preferring, [scored(run, PREFERENCES) for run in preferring]))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.with_suffix(".csv").write_text(as_csv(rows))
    answers = args.output.with_name(f"{args.output.name}_answers.md")
    answers.write_text(shown(first, open_split(untuned.settings.data, "test")))
    print(as_markdown(rows))
    print(f"written to {args.output}.csv and {answers}")


def tuned(args: argparse.Namespace, way: str, changes: Mapping[str, Any]) -> Run:
    """Returns the run of a kind of tuning and a seed; trains it if missing."""
    folder = args.workdir / way.replace(" ", "_") / f"seed_{changes['seed']}"
    print(folder, file=sys.stderr)
    steps = dict.fromkeys(("train.num_steps", "optimizer.decay_steps"), args.steps)
    steps |= dict.fromkeys(("eval.every_steps", "checkpoint.every_steps"), args.steps // 2)
    given = steps | {"train.tokens_per_batch": 4096, "train.init_from": str(args.base)} | changes
    given["data.num_train_examples"] = args.examples
    if way == FROM_NOTHING:
        given["tokenizer.path"] = str(args.base / TOKENIZER / "text.json")
    return tj.train(tj.config(CONFIGS / "alpaca.py", given), folder)


def preferred(args: argparse.Namespace, seed: int) -> Run:
    """Returns the DPO run of a seed; trains it if missing."""
    origin, folder = args.workdir / WHOLE.replace(" ", "_") / f"seed_{seed}", args.workdir / "DPO"
    print(folder / f"seed_{seed}", file=sys.stderr)
    files = pairs_of(tj.load(origin), folder / f"pairs_{seed}")
    changes = {f"data.{split}_text": str(path) for split, path in files.items()}
    changes |= {"train.init_from": str(origin), "seed": seed}
    steps = args.steps // 5
    changes |= dict.fromkeys(("train.num_steps", "optimizer.decay_steps"), steps)
    changes |= dict.fromkeys(("eval.every_steps", "checkpoint.every_steps"), steps)
    changes |= {"data.max_length": 256, "train.tokens_per_batch": 4096}
    changes |= {"optimizer.learning_rate": 2e-5, "optimizer.warmup_steps": steps // 10}
    return tj.train(tj.config(CONFIGS / "dpo.py", changes), folder / f"seed_{seed}")


def pairs_of(run: Run, folder: Path) -> dict[str, Path]:
    """Files of preferences, written if missing: answers of the data set (chosen) and of the run
    (rejected) to instructions without input, if these differ and are not empty."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for split, count in PAIRS.items():
        files[split] = folder / f"{split}.jsonl"
        if files[split].exists():
            continue
        asked = instructions(open_split(run.settings.data, split), count)
        own = run.predict([question for question, _ in asked], batch_size=64)
        pairs = [
            {"prompt": question, "chosen": answer, "rejected": other}
            for (question, answer), other in zip(asked, own, strict=True)
            if other.strip() and other != answer
        ]
        text = "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
        files[split].write_text(text)
    return files


def instructions(examples: Sequence[Mapping[str, str]], count: int) -> list[tuple[str, str]]:
    """First one-line instructions without input, with their answers."""
    found = list[tuple[str, str]]()
    for example in examples:
        question, *others, answer = conversation_from_json(example["turns"])
        if not others and "\n" not in question.content:
            found.append((question.content, answer.content))
        if len(found) == count:
            break
    return found


def scored(run: Run, names: Sequence[str], path: Path | None = None) -> dict[str, float]:
    """Metrics of a run on the test split, stored in a file: by default one of its workdir."""
    stored = path or run.workdir / "scores.json"
    if not stored.exists():
        stored.parent.mkdir(parents=True, exist_ok=True)
        metrics = run.evaluate("test")
        stored.write_text(json.dumps({name: float(metrics[name]) for name in names}))
    return json.loads(stored.read_text())


def row(name: str, runs: Sequence[Run], found: Sequence[Mapping[str, float]]) -> Row:
    """Row of the table, from the runs and scores of the seeds: metrics, trained parameters and
    checkpoint size."""
    of_runs = [scores | _saved(run) for scores, run in zip(found, runs, strict=True)]
    metrics = {metric: [values[metric] for values in of_runs] for metric in of_runs[0]}
    records = [read_metrics(run.workdir) for run in runs]
    last = [[one for one in each if "step_ms" in one][-1] for each in records]
    return Row(
        name=name,
        metrics=metrics,
        parameters=_size(runs[0]),
        tokens_per_s=sum(one["tokens_per_s"] for one in last) / len(last),
        seconds=sum(each[-1]["time"] - each[0]["time"] for each in records),
    )


def _size(run: Run) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(run.params))


def _saved(run: Run) -> dict[str, float]:
    """Trained parameters, and megabytes of them and of the optimizer's state in a checkpoint."""
    folder = run.workdir / CHECKPOINTS / str(run.step)
    params, training = (saved_arrays(folder, item).values() for item in (PARAMS, TRAINING))
    sizes = [
        sum(math.prod(one.shape) * one.dtype.itemsize for one in each)
        for each in (params, training)
    ]
    trained = sum(math.prod(one.shape) for one in params)
    return {"trained": trained, "MB parameters": sizes[0] / 1e6, "MB optimizer": sizes[1] / 1e6}


def shown(runs: Mapping[str, Run], examples: Sequence[Mapping[str, str]]) -> str:
    """Formats instructions and the answers of each run as Markdown."""
    asked = instructions(examples, SHOWN)
    answers = {name: run.predict([one for one, _ in asked]) for name, run in runs.items()}
    parts = []
    for i, (question, answer) in enumerate(asked):
        parts.append(f"### {question}\n")
        of_runs = {"the set": answer} | {name: own[i] for name, own in answers.items()}
        parts += [f"**{name}**\n\n```\n{text}\n```\n" for name, text in of_runs.items()]
    return "\n".join(parts)


if __name__ == "__main__":
    try:
        main()
    except tj.UserError as error:
        sys.exit(f"error: {error}")

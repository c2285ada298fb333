# SPDX-License-Identifier: Apache-2.0
"""Real nights with planted proposals: what is promoted and refused, by which rule.

    python experiments/nights.py --folder=runs/nights --nights=20 --data=DIR

Each night has `tiny_shakespeare_claims` as its baseline, seeds of its own, and the proposals of
`PROPOSALS` in an order of its own: some without an effect, some known to help, some that break a
rule. What runs until its time is up is in the first night only. The same command continues;
`--table` prints what is there so far as Markdown.
"""

import argparse
import collections
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from transformer_jax.errors import Stopped, UserError
from transformer_jax.lab.night.ledger import Ledger
from transformer_jax.lab.night.report import night
from transformer_jax.lab.report import markdown_table

DEFINITION = '''"""A night with planted proposals."""

def get_night():
    return dict(
        question="Night {number} of the planted proposals.",
        config="tiny_shakespeare_claims",
        smallest=0.02,
        budget={{"runs": 400}},
        proposals=13,
        looks=(1, 7),  # a look starts two processes, which may cost more than its runs
        base={{
            "seed": {seed},
            "data.dir": {data!r},
            "train.num_steps": {steps},
            "eval.every_steps": {steps},
            "checkpoint.every_steps": {steps},
            "optimizer.decay_steps": {steps},
        }},
    )
'''
ACTIVATION = '''"""{why}"""

import flax.linen as nn

from transformer_jax.nn.feed_forward import ACTIVATIONS

OVERRIDES = {{"model.activation": "{name}"}}


@ACTIVATIONS.register("{name}")
def {name}(x):
    {code}
'''
OTHER_PARAMETERS = '''"""The same layer; its parameters have other paths and so other values."""

from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.layers import FEED_FORWARDS
from transformer_jax.nn.sublayers import FeedForwardLayer

OVERRIDES = {"model.feed_forward": "wrapped"}


@FEED_FORWARDS.register("wrapped")
class Wrapped(FeedForwardLayer):
    reads = FeedForward.reads

    def setup(self):
        self.layer = FeedForward(self.config, self.num_sublayers)

    def __call__(self, x, deterministic, real=None):
        return self.layer(x, deterministic, real)
'''
PROPOSALS = {
    "without effect": {
        "another_epsilon": {"optimizer.epsilon": 2e-8},
        "renamed_gelu": ("Another name for the same function.", "return nn.gelu(x)"),
        "renamed_layer": OTHER_PARAMETERS,
        "another_seed": {"seed": 7},
    },
    "improvement": {
        "muon": {"optimizer.name": "muon"},
        "rotary": {"model.positions": "rotary", "model.max_length": 512},
        "qk_norm": {"model.qk_norm": True},
    },
    "mistake": {
        "leaks_the_future": (
            "Centres each feature.",
            "return nn.gelu(x - x.mean(axis=1, keepdims=True))",
        ),
        "trains_longer": {"train.num_steps": 400},
        "another_metric": {"eval.num_examples": 100},
        "reads_the_validation_file": (
            "Looks at the text.",
            "return nn.gelu(x) * len(open('{valid}', 'rb').read(1))",
        ),
        "trains_on_validation": {"data.train_text": "{valid}"},
        "never_ends": ("Waits.", "__import__('time').sleep(10**9)"),
    },
}
"""Kind -> name of a proposal -> its overrides, a file, or an activation's docstring and code."""
ONCE = ("never_ends",)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--nights", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50, help="of a run")
    parser.add_argument("--data", type=Path, help="folder of the set tiny_shakespeare")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    folders = [args.folder / f"night_{number:02}" for number in range(args.nights)]
    if args.table:
        print(markdown_table(outcomes([folder for folder in folders if folder.exists()])))
        return 0
    try:
        for number, folder in enumerate(folders):
            plan(folder, number, args.steps, args.data)
            if not Ledger(folder).of_kind("finish"):
                night(folder)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return 75
    except UserError as error:
        print(f"error: {folder}: {error}", file=sys.stderr)
        return 2
    return 0


def plan(folder: Path, number: int, steps: int, data: Path | None) -> None:
    """Writes the definition and the proposals of a night, unless they are there."""
    if (folder / "night.py").exists():
        return
    (folder / "proposals").mkdir(parents=True, exist_ok=True)
    place = data and str(data.absolute())
    names = [(kind, name) for kind, proposals in PROPOSALS.items() for name in proposals]
    names = [(kind, name) for kind, name in names if number == 0 or name not in ONCE]
    random.Random(number).shuffle(names)
    for arrived, (kind, name) in enumerate(names):
        content = PROPOSALS[kind][name]
        path = write_proposal(folder / "proposals", name, content, f"{place}/input.txt.gz")
        os.utime(path, (arrived, arrived))
    fields = {"number": number, "seed": 100_000 * (number + 1), "data": place, "steps": steps}
    (folder / "night.py").write_text(DEFINITION.format(**fields))


def write_proposal(folder: Path, name: str, content: Any, valid: str) -> Path:
    if isinstance(content, dict):
        texts = {k: valid if v == "{valid}" else v for k, v in content.items()}
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"why": name.replace("_", " "), "overrides": texts}))
        return path
    if isinstance(content, tuple):
        why, code = content
        content = ACTIVATION.format(why=why, name=name, code=code.replace("{valid}", valid))
    path = folder / f"{name}.py"
    path.write_text(content)
    return path


def outcomes(folders: list[Path]) -> list[list[str]]:
    """A table of proposals: how often each was promoted, or refused by which rule."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for folder in folders:
        for line in Ledger(folder).of_kind("end"):
            counts[line["name"]][f"{line['verdict']} ({line['rule']})"] += 1
    cells = [["proposal", "kind", "nights", "outcomes"]]
    for kind, proposals in PROPOSALS.items():
        for name in proposals:
            shown = ", ".join(f"{number} {text}" for text, number in counts[name].most_common())
            cells.append([name.replace("_", " "), kind, str(counts[name].total()), shown])
    return cells


if __name__ == "__main__":
    sys.exit(main())

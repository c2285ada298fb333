# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes imported models; prints {name: {layout: losses of the steps}} as JSON.

Not a test: the campaigns start it in a process of its own, where XLA_FLAGS forces four devices,
with a folder of the imported run `bert` and the data.
"""

import json
import sys
from pathlib import Path

import transformer_jax as tj

LAYOUTS = {"fsdp 2, tensor 2": {"parallel.fsdp": 2, "parallel.tensor": 2}}
STEPS = {
    **{"optimizer.schedule": "constant", "optimizer.learning_rate": 3e-3},
    **{"optimizer.warmup_steps": 1, "model.dtype": "float32", "model.vocab_multiple": 2},
    **{"train.num_steps": 4, "train.tokens_per_batch": 28 * 8},
    **{"data.max_length": 28, "data.num_workers": 0, "eval.every_steps": 4},
    **{"logging.every_steps": 1, "checkpoint.every_steps": 4},
}
OF_TASK = {
    "bert": {"task.name": "classification", "data.name": "table", "model.dropout_rate": 0.0},
}
DIVIDED = tuple(OF_TASK)
"""Runs that are trained on four devices: one with a new head. Parts of all kinds of layers are
divided in tests/parallel."""


def losses(folder: Path, name: str, layout: str, changes: dict) -> list[float]:
    """Losses of the training steps."""
    data = {f"data.{split}_text": str(folder / f"{split}.tsv") for split in ("train", "valid")}
    origin = {"train.init_from": str(folder / name)}
    workdir = folder / f"{name} {layout}"
    config = tj.config(folder / "empty.py", STEPS | OF_TASK[name] | data | origin | changes)
    tj.train(config, workdir)
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["split"] == "train"]


if __name__ == "__main__":
    given = Path(sys.argv[1])
    found = {
        name: {layout: losses(given, name, layout, LAYOUTS[layout]) for layout in LAYOUTS}
        for name in DIVIDED
    }
    print(json.dumps(found))

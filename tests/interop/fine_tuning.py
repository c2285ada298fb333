# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes imported models; prints {name: {layout: losses of the steps}} as JSON.

Not a test: `test_fine_tuning.py` starts it in a process of its own, where XLA_FLAGS forces four
devices, with a folder of the imported run `bert` and the data.
"""

import json
import sys
from pathlib import Path

import transformer_jax as tj

LAYOUTS = {"fsdp 2, tensor 2": {"fsdp": 2, "tensor": 2}}
STEPS = {
    "optimizer.schedule": "constant",
    "optimizer.learning_rate": 3e-3,
    "optimizer.warmup_steps": 1,
    "model.dtype": "float32",
    "model.vocab_multiple": 2,
    "model.dropout_rate": 0.0,
    "train.num_steps": 4,
    "train.tokens_per_batch": 28 * 8,
    "data.max_length": 28,
    "data.num_workers": 0,
    "eval.every_steps": 4,
    "logging.every_steps": 1,
    "checkpoint.every_steps": 4,
}
OF_TASK = {
    "bert": {"task.name": "classification", "data.name": "labeled_tsv"},
    "gpt2": {"task.name": "language_modeling", "data.name": "text"},
}
DIVIDED = ("bert",)
"""Runs that are trained on four devices: one with a new head. Parts of all kinds of layers are
divided in tests/parallel."""


def losses(folder: Path, name: str, layout: str, parallel: dict) -> list[float]:
    """Losses of the training steps."""
    suffix = "tsv" if name == "bert" else "txt"
    changes = {
        f"data.{split}_text": str(folder / f"{split}.{suffix}") for split in ("train", "valid")
    }
    changes |= {f"parallel.{field}": value for field, value in parallel.items()}
    changes |= {"train.init_from": str(folder / name), **OF_TASK[name], **STEPS}
    workdir = folder / f"{name} {layout}"
    tj.train(tj.config(folder / "empty.py", changes), workdir)
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["split"] == "train"]


if __name__ == "__main__":
    given = Path(sys.argv[1])
    found = {
        name: {layout: losses(given, name, layout, LAYOUTS[layout]) for layout in LAYOUTS}
        for name in DIVIDED
    }
    print(json.dumps(found))

# SPDX-License-Identifier: Apache-2.0
"""`train` on Multi30k, whose rows have 64 tokens; its losses in float32."""

import json
import tempfile
from pathlib import Path
from typing import Any

import transformer_jax as tj
from experiments.devices.check import Check
from experiments.devices.steps import TINY_PAIRS, check_losses
from transformer_jax.data.sets.public import MULTI30K

LARGEST_GAP = 0.05  # of losses in bfloat16 and float32, in nats per token


def run(check: Check) -> None:
    if not (check.dry or MULTI30K.local_folder().exists()):
        check.record("left out", reason=f"no folder {MULTI30K.local_folder()}")
        return
    with check.attempt("train"):
        losses = train(check, "as configured", {})
        exact_fields = {"model.dtype": "float32", "model.attention": "plain"}
        exact = train(check, "float32, plain attention", exact_fields)
        check_losses(check, "losses against float32", losses, exact, LARGEST_GAP)


def train(check: Check, label: str, changes: dict[str, Any]) -> list[float]:
    """Trains some steps, records the last ones and returns the loss of each."""
    steps = 4 if check.dry else 20
    changes = changes | {"logging.every_steps": 1, "optimizer.warmup_steps": 2}
    if check.dry:
        changes |= TINY_PAIRS | {"data.name": "synthetic_en_de"}
    config = tj.config("multi30k_en_de", changes)
    with tempfile.TemporaryDirectory() as folder:
        tj.train(config, folder, until=steps, progress=False)  # without an evaluation
        lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    records = [record for record in records if record["split"] == "train"]
    last = {name: records[-1].get(name) for name in ("loss", "grad_norm", "step_ms", "share_data")}
    check.record(label, steps=len(records), first_loss=records[0]["loss"], **last)
    return [record["loss"] for record in records]

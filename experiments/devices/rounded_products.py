# SPDX-License-Identifier: Apache-2.0
"""Losses of Multi30k with products in bfloat16, as accelerators and as CPUs round them, beside
float32; on a CPU.

    python -m experiments.devices.rounded_products runs/rounded_products
"""

import argparse
import contextlib
import json
import types
from pathlib import Path
from unittest import mock

import numpy as np

import transformer_jax as tj
from transformer_jax.nn import ops

STEPS = 300
AS_ON_ACCELERATORS = types.SimpleNamespace(is_cpu=lambda: False)
RUNS = {
    "float32": ("float32", None),
    "as on accelerators": ("bfloat16", AS_ON_ACCELERATORS),
    "as on CPUs": ("bfloat16", None),
}


def losses_of(dtype: str, platform: types.SimpleNamespace | None, workdir: Path) -> np.ndarray:
    """Losses of all steps in nats per token, of a run whose products are those of `platform`."""
    changes = {"model.dtype": dtype, "logging.every_steps": 1}
    forced = mock.patch.object(ops, "platform", platform) if platform else contextlib.nullcontext()
    with forced:
        tj.train(tj.config("multi30k_en_de", changes), workdir, until=STEPS, progress=False)
    records = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return np.array([record["loss"] for record in records if record["split"] == "train"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    losses = {
        name: losses_of(dtype, platform, folder / name.replace(" ", "_"))
        for name, (dtype, platform) in RUNS.items()
    }
    for name, curve in losses.items():
        gaps = np.abs(curve - losses["float32"])
        means = np.round(curve.reshape(-1, 50).mean(axis=1), 4).tolist()
        print(f"{name}: {means}, mean difference {gaps.mean():.4f}, largest {gaps.max():.4f}")


if __name__ == "__main__":
    main()

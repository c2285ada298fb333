"""Unpacks the kept workdirs, uses and continues each run, and prints the results as JSON.

    python tests/runs/old_workdirs/use.py --folder=DIR

Uses only the notebook's interface and the files of a workdir, so it runs on any version of the
package. `make.py` records the results of the version that trained the runs; `test_old_workdirs.py`
compares the present version's results with that record.
"""

import argparse
import hashlib
import json
import logging
import os
import shutil
import tarfile
from importlib import metadata
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RUNS = ("translation", "language_model", "adapters", "classification")
"""Config files beside this one. The adapters start from the language model."""
CHAINED = ("batches", "checkpoint", "resumed", "sha256")
"""Fields of records that came later."""
MORE_STEPS = 10
"""Steps by which `continued` continues a run."""
OF_A_MODULE = ("language_model", "adapters")
"""Runs whose config names what `position_encoding.py` registers."""
CONTINUED = ("translation", "adapters")
"""Runs that are continued. The other continuations have nothing that these have not: the language
model's data and module are those of its adapters, and states are of the translation's kinds."""
OPTIONS = {
    "translation": {"num_outputs": 2},
    "language_model": {"temperature": 1.0, "seed": 1},
    "adapters": {"temperature": 1.0, "seed": 1},
    "classification": {},
}
"""Decode options of the predictions."""
LINES = ["A sick pig did not see a window.", "Unsere Tochter will gehen.", "the dog"]


def config_of(name: str, changes: dict | None = None):
    """The config of a run; loads the user's module that the language models need."""
    import transformer_jax as tj

    modules = [HERE / "position_encoding.py"] if name in OF_A_MODULE else []
    return tj.config(HERE / f"{name}.py", changes, modules=modules)


def machine() -> dict:
    """All that decides the last bits of a result, apart from the package."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    kept = ("model name", "flags", "Features")
    described = {line.split("\t")[0]: line.partition(": ")[2] for line in lines}
    return {
        "cpu": {name: text for name, text in described.items() if name in kept},
        "processors": os.cpu_count(),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy", "flax")},
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def use(name: str) -> dict:
    """Results of a run in the current folder, and of a copy that is continued."""
    import transformer_jax as tj

    config_of(name)
    run = tj.load(name)
    results = {
        "step": run.step,
        "config": run.config.to_dict(),
        "params": described(run.params),
        "predictions": [
            [{"text": output.text, "score": output.score} for output in outputs]
            for outputs in run.n_best(LINES, **OPTIONS[name])
        ],
        "evaluation": run.evaluate(split="valid"),
    }
    if name in CONTINUED:
        results["continued"] = continued(name, run.step)
    return results


def continued(name: str, step: int) -> dict:
    """Results of continuing a copy of a run: parameters, records, and what its checkpoint holds."""
    import transformer_jax as tj

    workdir = Path(shutil.copytree(name, f"{name}_continued"))
    changes = {"train.num_steps": step + MORE_STEPS, "eval.every_steps": MORE_STEPS}
    run = tj.train(config_of(name, changes | {"logging.every_steps": 1}), workdir)
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    checkpoint = workdir / "checkpoints" / str(run.step)
    arrays = checkpoint / "training" / "_METADATA"
    return {
        "step": run.step,
        "params": described(run.params),
        "records": [
            {name: record[name] for name in record if name not in CHAINED}
            for record in records
            if record["step"] > step
        ],
        "checkpoint": sorted(path.name for path in checkpoint.iterdir()),
        "state": sorted(json.loads(arrays.read_text())["tree_metadata"]),
        "data": json.loads((checkpoint / "data" / "metadata").read_text()),
    }


def described(params) -> dict:
    """Shape, type, SHA-256 and norm of each parameter, by path."""
    import jax

    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf)
        found["/".join(str(key.key) for key in path)] = {
            "shape": list(array.shape),
            "dtype": array.dtype.name,
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
            "norm": float(np.linalg.norm(array.astype(np.float64))),
        }
    return found


def use_all(folder: Path) -> dict:
    """Results of all runs, unpacked into `folder`, the current one: configs name their text
    relative to it."""
    shutil.copytree(HERE / "text", folder / "text")
    for name in RUNS:
        with tarfile.open(HERE / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return {"machine": machine(), "runs": {name: use(name) for name in RUNS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    logging.getLogger("absl").setLevel(logging.ERROR)
    os.chdir(args.folder)
    print(json.dumps(use_all(args.folder), indent=1))


if __name__ == "__main__":
    main()

"""Trains the workdirs that `test_old_workdirs.py` uses, packs them, and records their use.

    PYTHONPATH=OLD_CHECKOUT python tests/runs/old_workdirs/make.py

Run it with the version of the package whose workdirs are to be kept: a new version must load and
continue them, so a run of it proves nothing about old workdirs. `transformer_jax` is imported from
PYTHONPATH, the scripts and configs from this folder. Writes `NAME.tar.gz` for each run, and
`recorded.json`.
"""

import os

# As tests/conftest.py sets them: bits depend on the compiler's options.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_disable_hlo_passes=onednn-contraction-rewriter,onednn-ops-rewriter"
)

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from use import HERE, RUNS, config_of

import transformer_jax as tj


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(HERE / "text", Path(folder) / "text")
        os.chdir(folder)  # the configs name their text relative to it
        for name in RUNS:
            tj.train(config_of(name), name)
            with tarfile.open(HERE / f"{name}.tar.gz", "w:gz") as archive:
                archive.add(name)
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, str(HERE / "use.py"), f"--folder={folder}"]
        recorded = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout
        (HERE / "recorded.json").write_text(recorded)


if __name__ == "__main__":
    main()

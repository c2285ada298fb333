# SPDX-License-Identifier: Apache-2.0
"""Launch files continue a run that was stopped and saved, and no run with another end."""

import os
import subprocess
from pathlib import Path

import pytest

from transformer_jax.errors import RESUMABLE

LAUNCH = Path(__file__).parents[2] / "experiments" / "launch"


def test_each_knows_the_status_of_a_run_that_goes_on():
    for path in LAUNCH.iterdir():
        assert str(RESUMABLE) in path.read_text(), path


@pytest.mark.parametrize(
    ("status", "restarts", "goes_on"),
    [
        *((status, "0", False) for status in (0, 1, 2, 130)),
        *((status, "2", True) for status in (RESUMABLE, 134, 137, 143)),
        (RESUMABLE, "3", False),
    ],
)
def test_a_job_of_slurm_is_queued_again_where_that_helps(tmp_path, status, restarts, goes_on):
    """With stand-ins for srun, which has the highest status of all processes, and for scontrol."""
    stand_ins = {"srun": f"exit {status}", "scontrol": f'echo "$@" > {tmp_path}/asked'}
    for name, script in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RESTARTS": "3", "SLURM_JOB_ID": "7"}
    environ["SLURM_RESTART_COUNT"] = restarts
    done = subprocess.run([LAUNCH / "slurm.sh", "train"], env=environ, check=False)
    assert done.returncode == status
    asked = tmp_path / "asked"
    assert (asked.read_text().split() if asked.exists() else []) == ["requeue", "7"] * goes_on

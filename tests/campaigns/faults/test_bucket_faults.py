# SPDX-License-Identifier: Apache-2.0
"""The campaign of faults in buckets, short; `make campaigns` runs it on Cloud Storage, too."""

import json
import os
import subprocess
import sys


def test_a_run_in_a_bucket_loses_nothing(tiny_language_model, tmp_path):
    changes = {"train.num_steps": 600, "checkpoint.every_steps": 50, "eval.every_steps": 600}
    changes |= {"optimizer.decay_steps": 600, "eval.num_examples": None, "checkpoint.keep": 3}
    fields = tiny_language_model | changes
    words = [f"--config.{name}={value}" for name, value in fields.items() if value is not None]
    run = subprocess.run(
        [
            *(sys.executable, "-m", "tests.campaigns.faults.bucket_faults", "--bucket=s3"),
            *("--config=configs/quickstart.py", "--kills=0", "--flips=1", "--seed=1"),
            *(f"--workdir={tmp_path / 'campaign'}", *words),
        ],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert run.returncode == 0, run.stderr[-2000:] + run.stdout
    report = json.loads(run.stdout)
    assert report["kills"] == report["flips"] == 1 and not report["lost"]
    assert report["identical"]

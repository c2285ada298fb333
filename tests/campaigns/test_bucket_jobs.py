# SPDX-License-Identifier: Apache-2.0
"""Jobs of two processes on this machine whose workdir is in a bucket."""

import subprocess
import sys

import pytest

import transformer_jax as tj
from tests.campaigns.faults.kill_resume import differences
from tests.parallel.jobs import environment, job, records, training
from transformer_jax.checkpoints import manifest


@pytest.fixture(scope="module")
def in_bucket(tiny_language_model):
    """Function that makes the command to train in a bucket, with the state on all devices."""
    changes = {"checkpoint.every_steps": 2, "eval.every_steps": 2, "logging.every_steps": 1}
    changes |= {"train.tokens_per_batch": 384, "parallel.fsdp": 4, "checkpoint.keep_params": 1}
    overrides = {n: v for n, v in (tiny_language_model | changes).items() if v is not None}

    def words(there, steps, **more):
        return training(f"file://{there}", overrides | {"train.num_steps": steps} | more)

    return words


def messages(processes, status=0):
    """What the processes of a job tell until they end with this status."""
    answers = [process.communicate(timeout=300) for process in processes]
    assert {process.returncode for process in processes} == {status}, answers
    return [errors for _, errors in answers]


@pytest.fixture(scope="module")
def shared_copy(in_bucket, tmp_path_factory):
    """Path in the bucket of a run whose processes share one local copy."""
    folder = tmp_path_factory.mktemp("shared_copy")
    with job(*in_bucket(folder / "run", 4), caches=[folder / "cache"] * 2) as processes:
        assert "the first one keeps the run" not in messages(processes)[0]
    return folder / "run"


def losses(workdir, split):
    return {step: record["loss"] for step, record in records(workdir, split).items()}


def test_the_workdir_of_a_job_can_be_in_a_bucket(shared_copy):
    assert manifest.find_damage(shared_copy / "checkpoints" / "4") is None
    assert tj.load(shared_copy).step == 4 and set(records(shared_copy)) == {1, 2, 3, 4}


def test_machines_without_a_shared_disk_use_a_bucket(shared_copy, in_bucket, tmp_path, monkeypatch):
    """The run is resumed with another machine as process 0, and then in a single process."""
    there = tmp_path / "bucket" / "run"
    caches = [tmp_path / "a", tmp_path / "b"]
    with job(*in_bucket(there, 2), caches=caches) as processes:
        messages(processes)
    with job(*in_bucket(there, 4), caches=caches[::-1]) as processes:
        errors = messages(processes)
    assert "the first one keeps the run" in errors[0] and "continues from step 2" in errors[0]
    assert manifest.find_damage(there / "checkpoints" / "4") is None
    assert differences(there, shared_copy) == []
    for split in ("train", "valid"):
        assert losses(there, split) == losses(shared_copy, split)
    assert sorted(p.relative_to(there) for p in there.rglob("*.json*")) == sorted(
        p.relative_to(shared_copy) for p in shared_copy.rglob("*.json*")
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    words = [sys.executable, "-m", "transformer_jax", *in_bucket(there, 5)]
    done = subprocess.run(words, env=environment(4), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "continues from step 4" in done.stderr, done.stderr
    assert tj.load(there).step == 5


def test_processes_with_separate_copies_each_verify_all_of_it(shared_copy, tmp_path):
    """Each process verifies its whole copy, so that a flipped bit in any file of one is found."""
    caches = [tmp_path / "a", tmp_path / "b"]
    words = ("evaluate", f"--workdir=file://{shared_copy}", "--split=valid")
    with job(*words, caches=caches) as processes:
        messages(processes)
    arrays = max(caches[1].rglob("checkpoints/4/params/**/d/*"), key=lambda p: p.stat().st_size)
    contents = bytearray(arrays.read_bytes())
    contents[99] ^= 4
    arrays.write_bytes(contents)
    with job(*words, "--checkpoint=4", caches=caches) as processes:
        told = messages(processes, status=2)
    assert all("checkpoint" in errors and "damaged" in errors for errors in told)


def test_a_workdir_on_disks_that_are_not_shared_is_refused(in_bucket, tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    script = "import os, runpy, sys; os.chdir(os.environ['XDG_CACHE_HOME']); "
    script += "runpy.run_module('transformer_jax', run_name='__main__')"
    words = [word for word in in_bucket("nowhere", 2) if "--workdir" not in word]
    program = ("-c", script)
    with job(*words, "--workdir=run", program=program, caches=folders) as processes:
        told = messages(processes, status=2)
    assert all("all processes of a job must share the --workdir" in errors for errors in told)

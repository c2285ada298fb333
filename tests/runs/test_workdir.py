# SPDX-License-Identifier: Apache-2.0
"""Workdirs: folders of others are not touched, links are refused, one process writes."""

import functools
import os
import shutil
import subprocess
import sys

import pytest

import transformer_jax as tj
from tests.refusals import assert_refused
from tests.runs.conftest import contents
from transformer_jax.runs.workdir import MARK, lock_workdir, workdir_path, workdir_within
from transformer_jax.runtime.files import remove

FILES = ["config.json", "tokenizer/mine.txt", "metrics.jsonl", "predictions/mine", "together/mine"]


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_user_are_refused_and_kept(tmp_path, name, tiny_config):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    message = f"holds {name.split('/')[0]}, and no mark"
    assert_refused({message: lambda: tj.train(tiny_config(), tmp_path)})
    assert contents(tmp_path) == before


def lock(folder):
    with lock_workdir(folder):
        pass


def test_other_files_of_the_user_do_not_matter(tmp_path):
    (tmp_path / "log.txt").write_text("mine")  # the shell's own, from 2> run/log.txt
    lock(tmp_path)
    assert (tmp_path / MARK).exists() and (tmp_path / "log.txt").read_text() == "mine"


def test_a_mark_that_is_a_link_is_not_written(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / MARK).symlink_to(precious)
    assert_refused({"cannot write to ": lambda: lock(tmp_path / "run")})
    assert precious.read_text() == "mine"


def test_a_run_of_a_version_without_marks_continues(workdir, tiny_config):
    (workdir / MARK).unlink()
    assert tj.train(tiny_config(), workdir).step == 30


def missing(checkpoints, tmp_path):
    """As when someone deletes them."""
    return "holds a run whose checkpoints/ is gone"


def empty(checkpoints, tmp_path):
    """As when the disk is not mounted there."""
    checkpoints.mkdir()
    with (checkpoints.parent / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31}\n')  # the checkpoint of step 15 was saved before that of step 30
    return "holds a run whose checkpoints/ is gone"


def elsewhere(checkpoints, tmp_path):
    """As when the disk that a link names is missing."""
    checkpoints.symlink_to(tmp_path / "unmounted")
    return "checkpoints is a link"


@pytest.mark.parametrize("become", [missing, empty, elsewhere])
def test_a_run_whose_checkpoints_are_gone_does_not_start_over(
    workdir, tiny_config, become, tmp_path
):
    shutil.rmtree(workdir / "checkpoints")
    message = become(workdir / "checkpoints", tmp_path)
    before = contents(workdir)
    assert_refused({message: lambda: tj.train(tiny_config({"seed": 3}), workdir)})
    assert contents(workdir).items() >= before.items()


def test_a_run_killed_before_its_first_checkpoint_starts_over(workdir, tiny_config, fitted):
    shutil.rmtree(workdir / "checkpoints")
    (workdir / "checkpoints").mkdir()
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    strange = ['{"step": 1e999}\n', "[" * 100_000 + "\n", "null\n", '{"step": 99']  # no records
    (workdir / "metrics.jsonl").write_text("".join([lines[0], *strange]))
    assert tj.train(tiny_config(), workdir).step == 0


def link(path, outside):
    """Replaces a path by a link to its former contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        shutil.move(path, outside / "it")
    else:
        (outside / "it").mkdir()
    path.symlink_to(outside / "it")


def pipe(path, outside):
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


@pytest.mark.parametrize("become", [link, pipe])
@pytest.mark.parametrize(
    "name",
    [
        *(".transformer_jax", "config.json", "modules.json", "tokenizer", "tokenizer/joint.model"),
        *("checkpoints", "checkpoints/30", "checkpoints/30/params/d", "checkpoints/snapshots"),
        *("metrics.jsonl", "tensorboard", "predictions", "predictions/test-30.jsonl", "wandb"),
        *("profile/plugins", "together"),
    ],
)
def test_nothing_is_read_or_written_through_a_link_or_pipe(workdir, tmp_path, name, become):
    outside = tmp_path / "outside"
    outside.mkdir()
    become(workdir / name, outside)
    before = contents(outside)
    for use in (workdir_path, tj.load):
        with pytest.raises(tj.UserError, match=f"{workdir / name} is (a link|neither)"):
            use(workdir)
    assert contents(outside) == before


def test_the_workdir_itself_may_be_a_link_and_may_hold_other_links(workdir, tmp_path):
    (tmp_path / "linked").symlink_to(workdir)
    (workdir / "notes").symlink_to(tmp_path)
    (workdir / "wandb").mkdir()
    (workdir / "wandb" / "latest-run").symlink_to("run-1")
    assert workdir_path(tmp_path / "linked") == tmp_path / "linked"


HOLD = """
import sys
from pathlib import Path
from transformer_jax.runs.workdir import lock_workdir
with lock_workdir(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_is_refused_and_the_first_process_named(tmp_path):
    workdir = tmp_path / "runs" / "one"
    first = subprocess.Popen(
        [sys.executable, "-c", HOLD, workdir],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout.readline() == "held\n"
    assert_refused({f"one: process {first.pid} on ": lambda: lock(workdir)})
    lock(tmp_path / "runs" / "two")  # another workdir is free
    first.kill()  # which leaves no time to clean up
    first.communicate()
    with lock_workdir(workdir):
        assert (workdir / MARK).read_text().startswith(f"process {os.getpid()} on ")


def test_places_that_are_no_workdir_are_refused(workdir, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "seed_0").symlink_to(workdir)
    assert_refused(
        {
            "the name of the workdir is empty": lambda: workdir_path(""),
            "file/run: ": lambda: lock(tmp_path / "file" / "run"),
            "seed_0 is a link": lambda: workdir_within(tmp_path, "seed_0"),
        }
    )
    for name in ("a\\b", "a\0b", "a\udcffb/run", "run[lr=1]", "a*/run", "what?"):
        message = "in its path: arrays cannot be stored there"
        assert_refused({message: functools.partial(workdir_path, name)})
    for name in ("..", "../other", "/abs", "a//b", ""):
        message = "is not the name of a file below"
        assert_refused({message: functools.partial(workdir_within, tmp_path, name)})

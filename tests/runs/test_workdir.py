# SPDX-License-Identifier: Apache-2.0
"""Workdirs: folders of others are not touched, links are refused, one process writes."""

import os
import shutil
import subprocess
import sys

import pytest

import transformer_jax as tj
from transformer_jax.errors import UserError
from transformer_jax.runs.workdir import MARK, lock_workdir, workdir_path, workdir_within
from transformer_jax.runtime.files import remove

FILES = ["config.json", "tokenizer/mine.txt", "metrics.jsonl", "predictions/mine", "together/mine"]


@pytest.fixture
def own(tmp_path):
    """A folder with files of the user."""
    return tmp_path / "own"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FILES)
def test_files_of_the_user_are_refused_and_kept(own, name, tiny_config):
    (own / name).parent.mkdir(parents=True)
    (own / name).write_text("mine")
    before = contents(own)
    with pytest.raises(tj.UserError, match=f"own holds {name.split('/')[0]}, and no mark"):
        tj.train(tiny_config(), own)
    assert contents(own) == before


def test_other_files_of_the_user_do_not_matter(own):
    own.mkdir()
    (own / "log.txt").write_text("mine")  # the shell's own, from 2> run/log.txt
    with lock_workdir(own):
        assert (own / MARK).exists()
    assert (own / "log.txt").read_text() == "mine"


def test_a_mark_that_is_a_link_is_not_written(own, tmp_path):
    own.mkdir()
    (tmp_path / "precious").write_text("mine")
    (own / MARK).symlink_to(tmp_path / "precious")
    with pytest.raises(tj.UserError, match="cannot write to .*own"), lock_workdir(own):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


def test_an_empty_name_is_refused():
    with pytest.raises(tj.UserError, match="the name of the workdir is empty"):
        workdir_path("")


@pytest.mark.parametrize("name", ["a\\b", "a\0b", "a\udcffb/run"])
def test_a_name_that_arrays_cannot_be_stored_under_is_refused(name):
    with pytest.raises(tj.UserError, match="in its path: arrays cannot be stored there"):
        workdir_path(name)


def test_a_run_of_a_version_without_marks_continues(workdir, tiny_config):
    (workdir / MARK).unlink()
    assert tj.train(tiny_config(), workdir).step == 30


def missing(checkpoints):
    """As when someone deletes them."""


def empty(checkpoints):
    """As when the disk is not mounted there."""
    checkpoints.mkdir()
    with (checkpoints.parent / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31}\n')  # the checkpoint of step 15 was saved before that of step 30


@pytest.mark.parametrize("become", [missing, empty])
def test_a_run_whose_checkpoints_are_gone_does_not_start_over(workdir, tiny_config, become):
    shutil.rmtree(workdir / "checkpoints")
    become(workdir / "checkpoints")
    before = contents(workdir)
    config = tiny_config({"seed": 3})
    with pytest.raises(tj.UserError, match=f"{workdir} holds a run whose checkpoints/ is gone"):
        tj.train(config, workdir)
    after = contents(workdir)
    assert {path: after[path] for path in before if path.name != MARK} == {
        path: text for path, text in before.items() if path.name != MARK
    }


def test_a_run_whose_checkpoints_are_on_a_missing_disk_does_not_start_over(
    workdir, tiny_config, tmp_path
):
    shutil.rmtree(workdir / "checkpoints")
    (workdir / "checkpoints").symlink_to(tmp_path / "unmounted")
    before = contents(workdir)
    with pytest.raises(tj.UserError, match="checkpoints"):
        tj.train(tiny_config(), workdir)
    assert contents(workdir) == before


def test_a_run_killed_before_its_first_checkpoint_starts_over(workdir, tiny_config, monkeypatch):
    shutil.rmtree(workdir / "checkpoints")
    (workdir / "checkpoints").mkdir()
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    strange = ['{"step": 1e999}\n', "[" * 100_000 + "\n", "null\n", '{"step": 99']  # no records
    (workdir / "metrics.jsonl").write_text("".join([lines[0], *strange]))
    monkeypatch.setattr("transformer_jax.runs.train.fit", lambda *args: FakeState)
    assert tj.train(tiny_config(), workdir).step == 0


class FakeState:
    """The state of a training that does nothing."""

    params, model_params, step = {}, {}, 0


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


def test_a_link_to_a_workdir_in_another_is_refused(workdir, tmp_path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "seed_0").symlink_to(workdir)
    with pytest.raises(tj.UserError, match="seed_0 is a link"):
        workdir_within(tmp_path / "sweep", "seed_0")


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
    with (
        pytest.raises(UserError, match=f"one: process {first.pid} on .* is training there"),
        lock_workdir(workdir),
    ):
        pass
    with lock_workdir(tmp_path / "runs" / "two"):
        pass  # another workdir is free
    first.kill()  # which leaves no time to clean up
    first.communicate()
    with lock_workdir(workdir):
        assert (workdir / MARK).read_text().startswith(f"process {os.getpid()} on ")


def test_a_workdir_that_cannot_be_created_is_an_error_of_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot write to .*file/run: "),
        lock_workdir(tmp_path / "file" / "run"),
    ):
        pass


@pytest.mark.parametrize("name", ["..", "../other", "/abs", "a//b", ""])
def test_a_workdir_within_another_leads_nowhere_else(tmp_path, name, message_of):
    assert "is not the name of a file below" in message_of(lambda: workdir_within(tmp_path, name))

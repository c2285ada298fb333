# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: restored bit for bit, kept or deleted as configured, verified, and averaged."""

import errno
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.refusals import assert_refused, message_of
from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import PARAMS
from transformer_jax.checkpoints.store import (
    CheckpointConfig,
    Checkpoints,
    PrimaryCheckpoints,
    find_checkpoint,
)
from transformer_jax.errors import UserError
from transformer_jax.training.state import TrainState


def make_state(seed):
    rng = np.random.default_rng(seed)
    params = {
        "encoder": {"kernel": jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)},
        "scale": jnp.asarray(rng.normal(size=4), jnp.bfloat16),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    rng_data = jax.random.key_data(jax.random.key(seed))
    return TrainState(jnp.int32(seed), params, optimizer.init(params), rng_data)


def assert_same(restored, saved):
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    jax.tree.map(partial(np.testing.assert_array_equal, strict=True), restored, saved)


def step_of(checkpoints, which):
    """The step of the checkpoint that `which` names, all its items verified."""
    return int(find_checkpoint(checkpoints.directory, which).name)


def save_steps(directory, steps, scores=None, **config):
    """Saves `make_state(step)` for each step, with the data state [step]."""
    with Checkpoints(directory, CheckpointConfig(**config)) as checkpoints:
        for step in steps:
            checkpoints.save(step, make_state(step), [step])
            if scores:
                checkpoints.score(step, scores[step])
    return checkpoints


def steps_in(directory):
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def flip_bit(path):
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 4
    path.write_bytes(contents)


def item_files(folder, item="*"):
    return sorted(path for path in folder.glob(f"{item}/**/*") if path.is_file())


@pytest.fixture(scope="session")
def saved_run(tmp_path_factory):
    """A directory with the intact steps 1, 2 and 3, the best of them 1; tests use copies."""
    directory = tmp_path_factory.mktemp("run") / "checkpoints"
    save_steps(directory, [1, 2, 3], scores={1: 9.0, 2: 4.0, 3: 7.0})
    return directory


@pytest.fixture
def run(saved_run, tmp_path):
    return Checkpoints(shutil.copytree(saved_run, tmp_path / "run"), CheckpointConfig())


TARGET = jax.eval_shape(lambda: make_state(0))


# --- Save and restore ---


def test_the_iterator_and_donated_arrays_may_change_during_a_save(tmp_path):
    saved, state = make_state(1), make_state(1)
    data_state = {"position": [1], "workers": [{"next": 11}, None]}
    advance = jax.jit(lambda s: jax.tree.map(lambda leaf: leaf + 1, s), donate_argnums=0)
    with Checkpoints(tmp_path, CheckpointConfig()) as checkpoints:
        checkpoints.save(1, state, data_state)
        data_state["position"][0] = 2
        for _ in range(20):
            state = advance(state)
    assert_same(checkpoints.snapshot(1).state(TARGET), saved)
    assert checkpoints.snapshot(None).data_state == data_state | {"position": [1]}


def test_parameters_restore_alone(run, caplog):
    flip_bit(item_files(run.directory / "3", "training")[0])
    shutil.rmtree(run.directory / "3" / "data")
    snapshot = run.snapshot("latest", (PARAMS,))
    assert snapshot.step == 3 and not caplog.records
    assert_same(snapshot.params(TARGET.params), make_state(3).params)


def test_a_saved_step_is_not_saved_again(run):
    with run:
        run.save(3, make_state(100), [100])
    assert_same(run.snapshot(3).state(TARGET), make_state(3))


# --- What is kept ---


def test_the_latest_and_the_best_are_kept(tmp_path):
    """Of equally good ones the newer."""
    scores = {1: 1.0, 2: 5.0, 3: 5.0, 4: float("nan"), 5: 3.0, 6: 3.0}
    checkpoints = save_steps(tmp_path, scores, scores, keep=2)
    assert steps_in(tmp_path) == [3, 5, 6]
    assert step_of(checkpoints, "best") == 3
    # Also by a process that comes later.
    save_steps(tmp_path, [7, 8], {7: 0.0, 8: 6.0}, keep=1)
    assert steps_in(tmp_path) == [8]
    save_steps(tmp_path / "without scores", range(1, 5), keep=2)
    assert steps_in(tmp_path / "without scores") == [3, 4]


def test_a_best_checkpoint_is_deleted_when_another_is_better(tmp_path):
    with Checkpoints(tmp_path, CheckpointConfig(keep=1)) as checkpoints:
        for step, score, kept in [(1, 5.0, [1]), (2, 4.0, [1, 2]), (3, 6.0, [3])]:
            checkpoints.save(step, make_state(step), [step])
            checkpoints.score(step, score)
            assert steps_in(tmp_path) == kept
        # Not scored yet, and so far no reason to delete what is best.
        checkpoints.save(4, make_state(4), [4])
        checkpoints.wait()
        assert steps_in(tmp_path) == [3, 4]
    assert step_of(checkpoints, "best") == 3


def test_a_kill_while_a_score_is_written_leaves_the_checkpoint_intact(run, monkeypatch):
    with run:
        run.save(4, make_state(4), [4])
        run.wait()
        with monkeypatch.context() as patch:
            patch.setattr(manifest, "add_file", Mock(side_effect=OSError("no room")))
            assert_refused({"4: no room": lambda: run.score(4, 99.0)})
        shutil.copytree(run.directory / "4", run.directory / "5")
        (run.directory / "5" / "metrics" / "metrics").unlink()
    assert step_of(run, "best") == 4  # complete, though the manifest does not list the score yet
    assert step_of(run, "latest") == 5
    with run:
        run.score(4, 99.0)
    flip_bit(run.directory / "4" / "metrics" / "metrics")
    assert step_of(run, "best") == 1


def test_a_synchronous_save_is_complete_when_it_returns(tmp_path, monkeypatch):
    write = manifest.write_manifest
    monkeypatch.setattr(manifest, "write_manifest", lambda folder: (time.sleep(0.2), write(folder)))
    with Checkpoints(tmp_path, CheckpointConfig(asynchronous=False, keep_params=1)) as checkpoints:
        checkpoints.save(1, make_state(1), None)
        assert steps_in(tmp_path) == steps_in(tmp_path / "snapshots") == [1]


def test_an_unfinished_save_is_not_the_latest_step(tmp_path, monkeypatch):
    write, may_end = manifest.write_manifest, threading.Event()
    monkeypatch.setattr(
        manifest, "write_manifest", lambda folder: (may_end.wait(60), write(folder))
    )
    with Checkpoints(tmp_path / "run", CheckpointConfig()) as checkpoints:
        assert checkpoints.latest_step() is None
        assert not (tmp_path / "run").exists()  # reading writes nothing
        for step, before in ((1, None), (2, 1)):
            may_end.clear()
            checkpoints.save(step, make_state(step), None)
            assert checkpoints.latest_step() == before
            may_end.set()
            checkpoints.wait()
            assert checkpoints.latest_step() == step


# --- Which checkpoint is opened ---


def test_a_checkpoint_is_named_by_step_latest_or_best(run):
    names = {None: 3, "latest": 3, "best": 1, 2: 2, "2": 2}
    assert {which: step_of(run, which) for which in names} == names


def test_what_is_not_there_or_does_not_fit_is_refused(run, tmp_path):
    longer = TARGET.params | {"scale": jax.ShapeDtypeStruct((9,), jnp.bfloat16)}
    wider = TARGET.params | {"scale": jax.ShapeDtypeStruct((4,), jnp.float32)}
    renamed = {"encoder": TARGET.params["encoder"], "decoder": TARGET.params["scale"]}
    snapshot = run.snapshot(3)
    unscored = save_steps(tmp_path / "unscored", [1])
    gone = item_files(run.directory / "2", "params")[0]
    gone.unlink()
    absent = Checkpoints(tmp_path, CheckpointConfig())
    in_a_file = Checkpoints(run.directory / "3" / manifest.MANIFEST / "x", CheckpointConfig())
    missing = f"2 is damaged: {gone.relative_to(run.directory / '2')} is missing"
    table = {
        "every_steps": lambda: CheckpointConfig(every_steps=0),
        "keep is 0": lambda: CheckpointConfig(keep=0),
        "keep_params": lambda: CheckpointConfig(keep_params=-1),
        "scale is saved as bfloat16[4], expected bfloat16[9]": lambda: snapshot.params(longer),
        "bfloat16[4], expected float32[4]": lambda: snapshot.state(TARGET.replace(params=wider)),
        "decoder is not saved; scale is saved but not exp": lambda: snapshot.params(renamed),
        f"no checkpoint in {tmp_path}": lambda: absent.snapshot(None),
        "has a score": lambda: step_of(unscored, "best"),
        "cannot write checkpoints in": partial(in_a_file.save, 1, make_state(1), None),
        missing: lambda: run.snapshot(2),
    }
    for which in (4, "4", "newest", "-1"):
        words = f"no checkpoint {which} in {run.directory}; take latest, best or one of 1, 2, 3"
        table[repr(which)] = (partial(step_of, run, which), words)
    for count in (0, 4):
        words = f"cannot average {count} checkpoints: {run.directory} holds the parameters of 3"
        table[words] = partial(run.snapshot(None).average, count, TARGET.params)
    assert_refused(table)


def test_a_snapshot_stays_the_same_while_a_run_saves_others(run):
    snapshot = run.snapshot("latest")
    with run:
        run.save(4, make_state(4), [4])
    assert run.snapshot("latest").step == 4
    assert (snapshot.step, snapshot.data_state) == (3, [3])
    assert_same(snapshot.state(TARGET), make_state(3))
    assert snapshot.average(2, TARGET.params)[0] == [3, 2]
    shutil.rmtree(snapshot.folder)  # not replaced by another
    for read in (lambda: snapshot.state(TARGET), lambda: snapshot.average(2, TARGET.params)):
        assert_refused({"3/params cannot be read": read})


# --- Damage ---


def test_a_flipped_bit_in_any_file_is_found(run):
    folder = run.directory / "3"
    names = [path.relative_to(folder) for path in item_files(folder)]
    items = {"params", "training", "data", "provenance", "metrics"}
    assert {name.parts[0] for name in names} == items
    for name in names:
        flip_bit(folder / name)
        assert_refused({f"damaged: {name}": lambda: step_of(run, 3)})
        flip_bit(folder / name)
    assert step_of(run, 3) == 3


def test_damaged_checkpoints_are_skipped_with_one_warning_each(run, caplog):
    flip_bit(run.directory / "1" / "metrics" / "metrics")
    assert step_of(run, "best") == 3 and len(caplog.records) == 1
    caplog.clear()
    flip_bit(run.directory / "1" / "metrics" / "metrics")
    flip_bit(item_files(run.directory / "3", "training")[0])
    (run.directory / "2" / manifest.MANIFEST).unlink()
    snapshot = run.snapshot("latest")
    assert (snapshot.step, snapshot.data_state) == (1, [1])
    assert_same(snapshot.state(TARGET), make_state(1))
    shutil.rmtree(run.directory / "1" / "data")
    assert_refused({f"no intact checkpoint in {run.directory}": lambda: step_of(run, "latest")})
    newest, older = [record.getMessage() for record in caplog.records[:2]]
    assert str(run.directory / "3") in newest and "training/" in newest
    assert str(run.directory / "2") in older and manifest.MANIFEST in older


def test_a_resumed_run_replaces_damaged_steps(run, caplog):
    flip_bit(item_files(run.directory / "3", "params")[0])
    flip_bit(run.directory / "2" / "metrics" / "metrics")
    with run:
        run.save(3, make_state(33), [33])
    assert steps_in(run.directory) == [1, 3]
    assert_same(run.snapshot("latest").state(TARGET), make_state(33))


def test_a_file_that_cannot_be_read_now_is_neither_skipped_nor_deleted(run, monkeypatch):
    path, opened = item_files(run.directory / "3", "params")[0], os.open

    def failing(which, *args, **kwargs):
        if os.fspath(which) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(which, *args, **kwargs)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(UserError, match=f"{path} cannot be read: Permission denied; it may be"):
        run.snapshot("latest")
    with pytest.raises(UserError, match=f"{path} cannot be read"), run:
        run.save(4, make_state(4), [4])
    monkeypatch.undo()
    assert step_of(run, "latest") == 3


def test_a_resumed_run_deletes_unfinished_saves(run):
    """Folders of steps have the names that Orbax gives."""
    for name in ("07", "٧", "9" * 200, "8x"):
        (run.directory / name).mkdir()
    unfinished = run.directory / "99.orbax-checkpoint-tmp"
    unfinished.mkdir()
    assert run.latest_step() == 3
    with run:
        run.save(4, make_state(4), [4])
    assert not unfinished.exists()


def test_a_killed_run_can_be_resumed(tmp_path):
    program = f"""
import jax.numpy as jnp
from transformer_jax.checkpoints.store import CheckpointConfig, Checkpoints
checkpoints = Checkpoints({str(tmp_path)!r}, CheckpointConfig(keep=2, keep_params=3))
for step in range(1, 100000):
    params = {{"kernel": jnp.full((300, 100), step)}}
    checkpoints.save(step, {{"params": params, "step": jnp.int32(step)}}, step)
    if step == 3:
        print(flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    process.stdout.readline()
    time.sleep(0.25)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    kernel = jax.ShapeDtypeStruct((300, 100), jnp.int32)
    target = {"params": {"kernel": kernel}, "step": jax.ShapeDtypeStruct((), jnp.int32)}
    with Checkpoints(tmp_path, CheckpointConfig(keep=2, keep_params=3)) as checkpoints:
        snapshot = checkpoints.snapshot(None)
        step, state = snapshot.step, snapshot.state(target)
        assert step == checkpoints.latest_step() == snapshot.data_state == int(state["step"])
        assert (np.asarray(state["params"]["kernel"]) == step).all()
        checkpoints.save(step + 1, state, step + 1)
    assert steps_in(tmp_path) == [step, step + 1]
    assert {path.name for path in tmp_path.iterdir()} == {str(step), str(step + 1), "snapshots"}


# --- A save that fails ---


def test_a_failed_save_is_one_line_and_leaves_earlier_checkpoints(tmp_path, request, capfd):
    """As on a full disk: writes beyond 10 kB into a file fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))

    def state(size):
        noise = jax.random.normal(jax.random.key(0), (size,))
        return {"params": {"kernel": noise}, "step": jnp.int32(size)}

    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep=1))
    checkpoints.save(1, state(10), None)
    checkpoints.save(2, state(10_000), None)
    message = message_of(checkpoints.save, 3, state(10), None)
    assert "cannot save the checkpoint of step 2" in message and "File too large" in message
    checkpoints.close()
    assert capfd.readouterr().err == ""
    assert step_of(checkpoints, None) == 1


def test_orbax_is_quiet(tmp_path, capfd):
    logging.getLogger("absl").setLevel(logging.INFO)
    checkpoints = save_steps(tmp_path, [1, 2], keep=1)
    checkpoints.snapshot(None).state(TARGET)
    assert capfd.readouterr() == ("", "")


# --- Averages ---


def assert_mean(params, steps):
    """`params` are the means of those of the steps, in their dtypes."""

    def check(mean, *leaves):
        assert mean.dtype == leaves[0].dtype
        exact = np.mean([np.asarray(leaf, np.float32) for leaf in leaves], axis=0)
        np.testing.assert_allclose(mean, jnp.asarray(exact, mean.dtype), rtol=1e-5)

    jax.tree.map(check, params, *[make_state(step).params for step in steps])


def test_an_average_is_the_mean_of_the_last_parameters(run):
    steps, params = run.snapshot("latest").average(3, TARGET.params)
    assert steps == [3, 2, 1]
    assert_mean(params, steps)
    assert run.snapshot(2).average(2, TARGET.params)[0] == [2, 1]
    assert run.snapshot("best").average(1, TARGET.params)[0] == [1]


def test_snapshots_reach_further_back_than_full_checkpoints(tmp_path, caplog):
    checkpoints = save_steps(tmp_path, range(1, 7), keep=1, keep_params=4)
    snapshots = tmp_path / "snapshots"
    assert steps_in(tmp_path) == [6] and steps_in(snapshots) == [3, 4, 5, 6]
    assert not (snapshots / "6" / "training").exists()
    steps, params = checkpoints.snapshot(None).average(4, TARGET.params)
    assert steps == [6, 5, 4, 3]
    assert_mean(params, steps)
    flip_bit(item_files(snapshots / "5", "params")[0])  # is skipped
    assert checkpoints.snapshot(None).average(3, TARGET.params)[0] == [6, 4, 3]
    call = partial(checkpoints.snapshot(None).average, 4, TARGET.params)
    assert_refused({"cannot average 4 checkpoints": call})


def test_an_old_best_checkpoint_is_not_averaged(tmp_path):
    """Step 1 is kept as the best; steps 2 and 3 between it and the snapshots are gone."""
    scores = {1: 1, 2: 0, 3: 0, 4: 0, 5: 0}
    checkpoints = save_steps(tmp_path, range(1, 6), keep=1, keep_params=2, scores=scores)
    assert steps_in(tmp_path) == [1, 5] and steps_in(tmp_path / "snapshots") == [4, 5]
    latest = checkpoints.snapshot(None)
    assert latest.average(2, TARGET.params, keep=1)[0] == [5, 4]
    call = partial(latest.average, 3, TARGET.params, keep=1)
    assert_refused({f"average 3 checkpoints: {tmp_path} holds the parameters of 2": call})
    assert checkpoints.snapshot("best").average(1, TARGET.params, keep=1)[0] == [1]


# --- Through process 0 (jobs of two processes: `tests/campaigns/test_bucket_jobs.py`) ---

CONFIG = CheckpointConfig(keep=2, keep_params=1)
KINDS = (Checkpoints, PrimaryCheckpoints)


@pytest.mark.parametrize(("writes", "reads"), [KINDS, KINDS[::-1]])
def test_each_kind_reads_the_checkpoints_of_the_other(tmp_path, writes, reads):
    state = make_state(3)
    with writes(tmp_path, CONFIG) as checkpoints:
        for step in (3, 4, 5):
            checkpoints.save(step, state, {"at": step})
            checkpoints.score(step, -step)
        checkpoints.wait()
    with reads(tmp_path, CONFIG) as checkpoints:
        assert checkpoints.latest_step() == 5
        for which, step in (("latest", 5), ("best", 3)):
            snapshot = checkpoints.snapshot(which)
            assert snapshot.step == step and snapshot.data_state == {"at": step}
            assert_same(snapshot.state(state), state)
            assert_same(snapshot.params(state.params), state.params)


def test_optional_arrays_that_are_missing_get_their_initial_value(tmp_path):
    state = make_state(3)
    with PrimaryCheckpoints(tmp_path, CONFIG) as checkpoints:
        checkpoints.save(3, state.replace(step=None), {})
    with PrimaryCheckpoints(tmp_path, CONFIG) as checkpoints:
        restored = checkpoints.snapshot(3).state(state, {"step": 9})
        assert_same(restored, state.replace(step=state.step + 6))
        with pytest.raises(UserError, match="step is not saved"):
            checkpoints.snapshot(3).state(state)

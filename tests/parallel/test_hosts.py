# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes on this machine: training, inference, checkpoints, lost processes."""

import json
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART
from tests.parallel.jobs import free_ports, job, records, training, wait_for_step
from tests.parallel.restored import digest
from transformer_jax.checkpoints import manifest
from transformer_jax.parallel import hosts

PAIR = Path(__file__).with_name("pair.py")


@pytest.fixture(scope="module")
def overrides(tiny_language_model):
    """Overrides for a run whose batches have four rows, one for each device, whose vocabulary can
    be divided, and whose step is the same program when it continues without an end."""
    changes = {"data.max_length": 48, "model.vocab_multiple": 4, "optimizer.decay_steps": 100_000}
    changes |= {"model.dropout_rate": 0.1}
    return tiny_language_model | changes


@pytest.fixture(scope="module")
def of_one_process(trained_once, overrides):
    return trained_once("trained_language_model_of_four_rows", tj.config(QUICKSTART, overrides))


@pytest.fixture(scope="module")
def pair(tmp_path_factory, overrides):
    """Two processes with two devices each that ran `pair.py` with a language model, whose programs
    are the smallest, and stopped after a SIGTERM to one.

    Attributes: `workdir`, of the finished run; `continued`, of its stopped copy; `statuses` and
    `outputs` (stdout, stderr) of the processes; `results`, their objects.
    """
    folder = tmp_path_factory.mktemp("pair")
    continued = folder / "continued"
    endless = overrides | {"train.num_steps": 100_000, "eval.every_steps": 100_000}
    plan = {"train": training(folder / "run", overrides), "continue": training(continued, endless)}
    plan["ports"] = free_ports(2)
    (folder / "plan.json").write_text(json.dumps(plan))
    with job(folder / "plan.json", program=[PAIR]) as processes:
        wait_for_step(continued, 35, processes)
        processes[1].send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=1200) for process in processes]
    results = [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]
    assert [process["train"] for process in results] == [0, 0], outputs
    return SimpleNamespace(
        workdir=folder / "run",
        continued=continued,
        statuses=[process.returncode for process in processes],
        outputs=outputs,
        results=results,
    )


def test_two_processes_have_the_losses_of_one(pair, of_one_process):
    for split in ("train", "valid"):
        ours, alone = records(pair.workdir, split), records(of_one_process, split)
        assert ours.keys() == alone.keys()
        for step in alone:
            assert ours[step]["loss"] == pytest.approx(alone[step]["loss"], rel=1e-4)
            assert ours[step].get("batches") == alone[step].get("batches")


def test_the_job_writes_the_files_of_one_process(pair, of_one_process):
    def kept(workdir):
        return {path.relative_to(workdir) for path in workdir.rglob("*.json*")}

    assert kept(pair.workdir) == kept(of_one_process)
    assert len(list((pair.workdir / "tensorboard").iterdir())) == 1
    data = [run / "checkpoints/30/data/metadata" for run in (pair.workdir, of_one_process)]
    assert json.loads(data[0].read_text()) == json.loads(data[1].read_text())


def test_process_0_writes_the_manifest_of_all_files(pair, tmp_path):
    for step in ("15", "30", "snapshots/30"):
        folder = shutil.copytree(pair.workdir / "checkpoints" / step, tmp_path / step)
        entries = manifest.read_entries(folder)
        manifest.write_manifest(folder)
        assert manifest.read_entries(folder) == entries


def test_process_0_hashes_a_checkpoint_that_all_read(pair):
    """Damage that it finds is an error in all."""
    entries = manifest.read_entries(pair.workdir / "checkpoints" / "30")
    used = [process["used"] for process in pair.results]
    assert [process["hashed"] for process in used] == [[f"30/{name}" for name in entries], []]
    assert {process["fell back to"] for process in used} == {15}
    (message,) = {process["refused"] for process in used}
    assert "30 is damaged: params/" in message and "is not what was written" in message


def test_a_checkpoint_is_restored_bit_for_bit_on_one_device(pair):
    expected = digest(pair.workdir, {"engine": "jit"}, 1)
    assert [process["used"]["digests"] for process in pair.results] == [{"2 x 2": expected}] * 2


def test_sigterm_to_one_process_stops_all_at_one_step(pair):
    assert pair.statuses == [75, 75], pair.outputs
    stopped = max(records(pair.continued))
    assert f"stopped by SIGTERM at step {stopped} of" in pair.outputs[0][1]
    assert tj.load(pair.continued).step == stopped


@pytest.mark.parametrize("steps_end", [True, False])
def test_a_run_whose_last_step_sees_a_sigterm_ends_regularly(monkeypatch, steps_end):
    """Later work, such as uploading files to a bucket, continues."""
    looked, left = threading.Event(), threading.Event()

    def look(name):
        if steps_end:
            hosts._stopping.set()
        looked.set()
        return "came"

    def leave(status):
        left.set()
        hosts._stopping.set()  # ends the thread

    monkeypatch.setattr(hosts, "_stopping", threading.Event())
    service = Mock(**{"global_state.client.key_value_try_get": look})
    monkeypatch.setattr(hosts, "distributed", service)
    monkeypatch.setattr(hosts, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(hosts, "exit_now", leave)
    hosts.exit_after_sigterm(seconds=0)
    assert looked.wait(10) and left.wait(10 * (not steps_end) + 0.2) == (not steps_end)


def test_a_process_of_a_job_can_act_as_a_single_process(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert hosts.num_processes() == 2
    with hosts.single_process():
        assert hosts.num_processes() == 1
        assert hosts.run_on_primary(lambda: 3) == 3 and hosts.gather("a") == ["a"]
        assert hosts.require_agreement(lambda: ("own", {"said": "x"})) == "own"
    assert hosts.num_processes() == 2


def test_arrays_pass_through_process_0_bit_for_bit():
    odd = np.array([0x7FC00001, 0x80000000, 0xFF800000, 1], np.uint32).view(np.float32)
    tree = {"odd": jnp.asarray(odd), "half": jnp.asarray([[1.5, -0.0]], jnp.bfloat16)}
    tree |= {"step": jnp.int32(7), "empty": jnp.zeros((0, 3)), "none": {"of it": None}}
    whole = hosts.arrays_to_primary(tree)
    for leaf in jax.tree.leaves(whole):
        assert isinstance(leaf, np.ndarray) and leaf.flags.owndata
    back = hosts.arrays_from_primary(whole, tree)
    assert back.pop("none") == tree.pop("none")
    for name, leaf in tree.items():
        assert back[name].dtype == leaf.dtype and back[name].sharding == leaf.sharding
        assert np.asarray(back[name]).tobytes() == np.asarray(leaf).tobytes()
        assert back[name].shape == leaf.shape

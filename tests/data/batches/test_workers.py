# SPDX-License-Identifier: Apache-2.0
"""Worker processes: the same batches and errors as without them, and no process left over. Objects
shared through a file: arrays and code arrive in another process."""

import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.data.batches import pipeline
from transformer_jax.data.batches.pipeline import train_batches
from transformer_jax.data.batches.workers import SharedFile, _picklable
from transformer_jax.data.files.lines import TextLines
from transformer_jax.errors import UserError
from transformer_jax.runtime.platform import DeviceKind


def numbers(line, rng):
    words = np.array(line.split(), np.int32)
    return {"tokens": words, "noise": rng.integers(1000, size=1, dtype=np.int32)}


def batches(source, num_workers, preprocess=numbers, **more):
    lengths = {"tokens": 12, "noise": 12}
    return train_batches(
        source, preprocess, lengths=lengths, rows=12, seed=1, num_workers=num_workers, **more
    )


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("workers") / "lines.txt"
    path.write_text("".join(" ".join(["7"] * (1 + i * 7 % 13)) + "\n" for i in range(90)))
    return TextLines(str(path))


def test_workers_are_added_in_the_middle_of_the_same_batches(lines):
    alone = batches(lines, 0)
    growing = batches(lines, 0, most_workers=2)

    def assert_same_batches(count):
        for left, right in zip(itertools.islice(alone, count), growing, strict=False):
            for name in left:
                np.testing.assert_array_equal(left[name], right[name], err_msg=name)
            assert alone.get_state() == growing.get_state()

    try:
        for added in (1, 2, None):
            assert_same_batches(13)
            assert growing.add_workers() == (added is not None)
            if added:
                assert len(multiprocessing.active_children()) <= added
        assert alone.overlong
        # Another number of workers resumes from the state.
        alone.set_state(json.loads(json.dumps(growing.get_state())))
        assert_same_batches(60)
    finally:
        alone.close()
        growing.close()


@pytest.mark.parametrize("kind, cores, count", [("cpu", 16, 0), ("gpu", 16, 8), ("tpu", 4, 3)])
def test_automatic_workers_leave_a_core_to_the_process(monkeypatch, kind, cores, count):
    monkeypatch.setattr(pipeline.platform, "target", lambda: DeviceKind(kind, "fake"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert pipeline.most_workers("auto") == count
    assert pipeline.most_workers(5) == 5


def raise_user_error(line, rng):
    raise UserError("line 3 is not text")


def kill_itself(line, rng):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    "num_workers, preprocess, message",
    [
        (0, raise_user_error, "line 3 is not text"),
        (1, raise_user_error, "line 3 is not text"),
        (
            1,
            kill_itself,
            "a data worker was killed .*: is memory short\\? Lower data.num_workers.*",
        ),
    ],
)
def test_an_error_in_a_worker_reaches_the_caller(lines, num_workers, preprocess, message):
    failing = batches(lines, num_workers, preprocess)
    with pytest.raises(UserError) as caught:
        next(failing)
    assert re.fullmatch(message, str(caught.value))
    failing.close()


def test_errors_that_cannot_be_pickled_are_sent_as_text():
    class OfTwoParts(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    sent = _picklable(OfTwoParts("one", "two"))
    assert isinstance(sent, RuntimeError) and str(sent) == "OfTwoParts: one and two"
    error = UserError("line 3 is not text")
    assert _picklable(error) is error


PARENT = """
import multiprocessing, signal, sys
from tests.data.batches.test_workers import TextLines, batches

if __name__ == "__main__":
    taken = batches(TextLines(sys.argv[1]), 1)
    next(taken)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    sys.stdin.readline()
    for _ in range(200):
        next(taken)
    print("still running", flush=True)
    sys.stdin.readline()
"""


def test_workers_survive_signals_to_the_group_but_not_their_parent(lines, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, script, lines.path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    [worker] = map(int, parent.stdout.readline().split())
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C, and a scheduler's end of the job
        os.killpg(parent.pid, number)
    parent.stdin.write("\n")
    parent.stdin.flush()
    assert parent.stdout.readline() == "still running\n"
    parent.kill()
    parent.communicate(timeout=60)
    until = time.monotonic() + 20
    while is_alive(worker):
        assert time.monotonic() < until, "a worker is still running"
        time.sleep(0.05)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_more_workers_than_streams_cause_a_warning(lines, caplog):
    batches(lines, 9).close()
    assert "only 4 of 9 data workers have rows to pack; a batch has 12 rows" in caplog.text


VALUE = {"text": "as it is", "arrays": [np.arange(100_000), np.ones((3, 4), np.float32)[:, ::2]]}


def assert_same(found):
    assert found["text"] == VALUE["text"]
    for left, right in zip(found["arrays"], VALUE["arrays"], strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


def load_there(file, stored, result):
    try:
        value, three = file.load(stored)
        assert_same(value)
        assert three() == 3
        result.put("same")
    except Exception as error:
        result.put(repr(error))


def test_another_process_loads_arrays_and_functions(monkeypatch):
    made_by_hand = types.ModuleType("made_by_hand")  # as a user's file is loaded
    monkeypatch.setitem(sys.modules, "made_by_hand", made_by_hand)
    context = multiprocessing.get_context("spawn")
    file, result = SharedFile.on_disk(), context.Queue()
    exec("def three(): return 3", vars(made_by_hand))
    stored = file.dump((VALUE, made_by_hand.three))
    process = context.Process(target=load_there, args=(file, stored, result))
    process.start()
    assert result.get(timeout=600) == "same"
    process.join()

# SPDX-License-Identifier: Apache-2.0
"""Objects shared through a file: arrays and code arrive in another process."""

import multiprocessing
import sys
import types

import numpy as np
import pytest

from transformer_jax.runtime.shared_arrays import SharedFile

VALUE = {"text": "as it is", "arrays": [np.arange(100_000), np.ones((3, 4), np.float32)[:, ::2]]}


def assert_same(found):
    assert found["text"] == VALUE["text"]
    for left, right in zip(found["arrays"], VALUE["arrays"], strict=True):
        np.testing.assert_array_equal(left, right)
        assert left.dtype == right.dtype


@pytest.mark.parametrize("make", [SharedFile.on_disk, lambda: SharedFile.in_memory(1 << 20)])
def test_a_dumped_object_is_loaded(make):
    file = make()
    stored = file.dump(VALUE)
    assert len(stored.pickled) < 1000  # the large array is in the file
    assert_same(file.load(stored))
    assert not file.load(stored)["arrays"][0].flags.writeable
    assert SharedFile.on_disk().load(SharedFile.on_disk().dump("no array")) == "no array"


def test_arrays_change_when_their_place_in_the_file_is_overwritten():
    file = SharedFile.in_memory(4096)
    first, second = (file.dump(np.full(10, i), start=2048 * i) for i in range(2))
    seen = file.load(first)
    assert (seen == 0).all() and (file.load(second) == 1).all()
    file.dump(np.full(10, 2))
    assert (seen == 2).all()


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
    assert result.get(timeout=60) == "same"
    process.join()

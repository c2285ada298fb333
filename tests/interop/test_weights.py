# SPDX-License-Identifier: Apache-2.0
"""Reading and writing safetensors files; damaged ones are reported in one line."""

import json
import os
import random

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from transformer_jax.errors import UserError
from transformer_jax.interop.weights import INDEX, WEIGHTS, Tensors, save_tensors

ARRAYS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.bias": np.arange(2, dtype=np.float32),
}


@pytest.fixture
def directory(tmp_path):
    save_tensors(ARRAYS, tmp_path / WEIGHTS)
    return tmp_path


def test_tensors_survive_a_round_trip(directory):
    tensors = Tensors(directory)
    assert dict(tensors) == {"a.weight": (2, 3), "a.bias": (2,)}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(tensors.read(name), array)


def test_files_may_be_symlinks_as_in_the_hubs_cache(directory, tmp_path_factory):
    hub = tmp_path_factory.mktemp("hub")
    snapshot, blobs = hub / "snapshots" / "revision", hub / "blobs"
    snapshot.mkdir(parents=True)
    directory.rename(blobs)
    (snapshot / WEIGHTS).symlink_to(blobs / WEIGHTS)
    np.testing.assert_array_equal(Tensors(snapshot).read("a.bias"), ARRAYS["a.bias"])
    (snapshot / WEIGHTS).rename(snapshot / "whole.safetensors")
    (blobs / INDEX).write_text(json.dumps({"weight_map": {"a.bias": "whole.safetensors"}}))
    (snapshot / INDEX).symlink_to(blobs / INDEX)
    np.testing.assert_array_equal(Tensors(snapshot).read("a.bias"), ARRAYS["a.bias"])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_floating_point_types_become_float32(tmp_path, dtype):
    save_file({"a": ARRAYS["a.weight"].astype(dtype)}, tmp_path / WEIGHTS)
    read = Tensors(tmp_path).read("a")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, ARRAYS["a.weight"])


def test_shards_are_read_as_one_model(tmp_path):
    for i, (name, array) in enumerate(ARRAYS.items()):
        save_file({name: array}, tmp_path / f"model-{i}.safetensors")
    names = {name: f"model-{i}.safetensors" for i, name in enumerate(ARRAYS)}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    tensors = Tensors(tmp_path)
    np.testing.assert_array_equal(tensors.read("a.bias"), ARRAYS["a.bias"])
    assert tensors.files["a.bias"].name == "model-1.safetensors"


def test_an_index_can_only_name_files_of_its_folder(tmp_path):
    invalid = ["", "{}", '{"weight_map": 3}', '{"weight_map": {}}', '{"weight_map": {"a": 3}}']
    names = ["..", "../b", "/b", "a/b", "", "a\\b", "gone.safetensors"]
    for index in [*invalid, *(json.dumps({"weight_map": {"a": name}}) for name in names)]:
        (tmp_path / INDEX).write_text(index)
        with pytest.raises(UserError, match="cannot be read"):
            Tensors(tmp_path)


def test_pickles_and_pipes_are_never_opened(tmp_path):
    for name in ("pytorch_model.bin", "model.pt", "flax_model.msgpack"):
        os.mkfifo(tmp_path / name)  # opening it would block
        with pytest.raises(UserError, match=f"{name}.*pickles are not read"):
            Tensors(tmp_path)
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / WEIGHTS)
    with pytest.raises(UserError, match="cannot be read"):
        Tensors(tmp_path)


def test_missing_weights_and_integer_weights_are_errors(tmp_path):
    with pytest.raises(UserError, match="model.safetensors is missing"):
        Tensors(tmp_path)
    save_file({"a": np.arange(3)}, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match="a has dtype I64"):
        Tensors(tmp_path).read("a")


def test_damaged_headers_are_reported_in_one_line(directory):
    path = directory / WEIGHTS
    intact = path.read_bytes()
    draw = random.Random(0)
    header = int.from_bytes(intact[:8], "little")
    refused = 0
    for _ in range(300):
        content = bytearray(intact)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(8 + header)] = draw.randrange(256)
        path.write_bytes(content)
        try:
            tensors = Tensors(directory)
            for name in tensors:
                tensors.read(name)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 600
    assert refused > 200

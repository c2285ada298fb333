"""Which meshes are worth compiling."""

import dataclasses

import pytest

from transformer_jax.runtime.accelerators import ACCELERATORS
from transformer_jax.tools.plan.mesh_search import (
    Sizes,
    less_and_less_memory,
    meshes,
    settings_of,
    speed,
)

SMALL = Sizes(devices=8, local=8, state=10**9, rows=64, d_model=1024, heads=8)
H100, V5E = ACCELERATORS["h100"], ACCELERATORS["v5e"]


def test_what_divides_the_least_comes_first():
    found = meshes(SMALL, H100)
    assert found[0] == {"data": 8, "fsdp": 1, "tensor": 1}
    assert [mesh["tensor"] for mesh in found] == sorted(mesh["tensor"] for mesh in found)
    assert all(mesh["data"] * mesh["fsdp"] * mesh["tensor"] == 8 for mesh in found)


def test_the_state_must_leave_room():
    large = dataclasses.replace(SMALL, state=100 * 10**9)
    assert {mesh["fsdp"] * mesh["tensor"] for mesh in meshes(large, H100)} == {4, 8}
    assert meshes(dataclasses.replace(SMALL, state=10**12), H100) == []


def test_rows_and_heads_and_registers_limit_the_axes():
    assert {mesh["tensor"] for mesh in meshes(dataclasses.replace(SMALL, heads=2), H100)} == {1, 2}
    assert meshes(dataclasses.replace(SMALL, rows=1), H100)[0]["tensor"] == 8
    narrow = dataclasses.replace(SMALL, d_model=256)
    assert {mesh["fsdp"] for mesh in meshes(narrow, V5E)} <= {1, 2}


@pytest.mark.parametrize(
    ("field", "values"),
    [("accumulation_steps", [2, 2, 4, 8, 16]), ("rows_per_device", [4, 4, 2, 1])],
)
def test_less_and_less_memory_is_asked_for(tiny_config, field, values):
    """With remat, then also with ever smaller micro-batches, as far as the rows of a device go."""
    config = tiny_config({f"train.{field}": values[0]})
    tried = [settings_of(one) for one in less_and_less_memory(config, SMALL_MESH)]
    assert [one["remat"] for one in tried] == ["none"] + ["full"] * (len(values) - 1)
    assert [one[field] for one in tried] == values
    assert all((one["data"], one["fsdp"], one["tensor"]) == (2, 4, 1) for one in tried)


SMALL_MESH = {"data": 2, "fsdp": 4, "tensor": 1}


def test_what_does_not_fit_ranks_last():
    fast = {"memory": {"fits": True}, "tokens_per_s": 9}
    slow = {"memory": {"fits": True}, "tokens_per_s": 1}
    large = {"memory": {"fits": False, "peak_gib": 90.0}, "tokens_per_s": 99}
    refused = {"memory": {"fits": False}}
    ranked = sorted([refused, slow, large, fast], key=speed, reverse=True)
    assert ranked == [fast, slow, large, refused]

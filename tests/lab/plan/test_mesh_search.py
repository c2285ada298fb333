# SPDX-License-Identifier: Apache-2.0
"""Meshes that a search tries, and their ranking."""

import dataclasses

import pytest

from transformer_jax.lab.plan.mesh_search import (
    SearchSizes,
    candidate_meshes,
    rank_key,
    settings_by_memory,
    varied_fields,
)
from transformer_jax.runs.config import read_settings
from transformer_jax.runtime.accelerators import ACCELERATORS

SMALL = SearchSizes(devices=8, local=8, state=10**9, rows=64, d_model=1024, heads=8)
H100, V5E = ACCELERATORS["h100"], ACCELERATORS["v5e"]


def test_meshes_that_divide_the_state_least_come_first():
    found = candidate_meshes(SMALL, H100)
    assert found[0] == {"data": 8, "fsdp": 1, "tensor": 1}
    assert [mesh["tensor"] for mesh in found] == sorted(mesh["tensor"] for mesh in found)
    assert all(mesh["data"] * mesh["fsdp"] * mesh["tensor"] == 8 for mesh in found)


def test_memory_rows_heads_and_registers_limit_the_axes():
    large = dataclasses.replace(SMALL, state=100 * 10**9)
    assert {mesh["fsdp"] * mesh["tensor"] for mesh in candidate_meshes(large, H100)} == {4, 8}
    assert candidate_meshes(dataclasses.replace(SMALL, state=10**12), H100) == []
    few_heads = dataclasses.replace(SMALL, heads=2)
    assert {mesh["tensor"] for mesh in candidate_meshes(few_heads, H100)} == {1, 2}
    assert candidate_meshes(dataclasses.replace(SMALL, rows=1), H100)[0]["tensor"] == 8
    narrow = dataclasses.replace(SMALL, d_model=256)
    assert {mesh["fsdp"] for mesh in candidate_meshes(narrow, V5E)} <= {1, 2}


@pytest.mark.parametrize(
    ("field", "values"),
    [("accumulation_steps", [2, 2, 4, 8, 16]), ("rows_per_device", [4, 4, 2, 1])],
)
def test_configs_take_less_and_less_memory(tiny_config, field, values):
    """First with remat, then also with smaller micro-batches, down to one row a device."""
    settings = read_settings(tiny_config({f"train.{field}": values[0]}))
    mesh = {"data": 2, "fsdp": 4, "tensor": 1}
    tried = [varied_fields(one) for one in settings_by_memory(settings, mesh)]
    assert [one["remat"] for one in tried] == ["none"] + ["full"] * (len(values) - 1)
    assert [one[field] for one in tried] == values
    assert all(one | mesh == one for one in tried)


def test_steps_that_do_not_fit_rank_last():
    fast = {"memory": {"fits": True}, "tokens_per_s": 9}
    slow = {"memory": {"fits": True}, "tokens_per_s": 1}
    large = {"memory": {"fits": False, "peak_gib": 90.0}, "tokens_per_s": 99}
    refused = {"memory": {"fits": False}}
    ranked = sorted([refused, slow, large, fast], key=rank_key, reverse=True)
    assert ranked == [fast, slow, large, refused]

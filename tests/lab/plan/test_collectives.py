# SPDX-License-Identifier: Apache-2.0
"""Collectives: their axes, their bytes, and the network that sets their time."""

import types

import numpy as np
import pytest

from transformer_jax.lab.plan import hlo
from transformer_jax.lab.plan.collectives import collectives
from transformer_jax.runtime.accelerators import ACCELERATORS

H100 = ACCELERATORS["h100"]


def mesh_of(shape, per_host):
    count = int(np.prod(shape))
    devices = [
        types.SimpleNamespace(platform="gpu", process_index=index // per_host)
        for index in range(count)
    ]
    axes = ("data", "fsdp", "tensor")
    devices = np.array(devices, object).reshape(shape)
    return types.SimpleNamespace(devices=devices, size=count, axis_names=axes)


def collectives_of(line, shape=(2, 4, 1), per_host=8):
    text = f"ENTRY %main (a: f32[8]) -> f32[8] {{\n  %a = f32[8]{{0}} parameter(0)\n  {line}\n}}\n"
    return collectives(hlo.parse_module(text), mesh_of(shape, per_host), H100)


GROUPS = [
    ("{{0,1,2,3},{4,5,6,7}}", ("fsdp",), 4),
    ("[2,4]<=[8]", ("fsdp",), 4),
    ("[4,2]<=[2,4]T(1,0)", ("data",), 2),
    ("mesh['data'=2,'fsdp'=4,'tensor'=1] {'fsdp'}", ("fsdp",), 4),
    ("mesh['data'=2,'fsdp'=4] {'data','fsdp'}", ("data", "fsdp"), 8),
    ("mesh['devices'=8] {'devices':(1)2}", ("data",), 2),
    ("{}", ("data", "fsdp"), 8),
]


@pytest.mark.parametrize(("groups", "axes", "count"), GROUPS)
def test_groups_are_along_axes_of_the_mesh(groups, axes, count):
    line = f"ROOT %r = f32[8]{{0}} all-reduce(%a), replica_groups={groups}, to_apply=%add"
    (found,) = collectives_of(line)
    assert (found.kind, found.axes) == ("all-reduce", axes)
    assert found.nbytes == 32 * 2 * (count - 1) / count


def test_bytes_are_sent_in_a_ring():
    for shape, operation, nbytes in (
        ("f32[32]{0}", "all-gather", 96),
        ("f32[2]{0}", "reduce-scatter", 24),
        ("f32[8]{0}", "all-to-all", 24),
        ("(f32[8]{0}, f32[32]{0})", "all-gather-start", 96),
    ):
        (found,) = collectives_of(f"%g = {shape} {operation}(%a), replica_groups=[2,4]<=[8]")
        assert (found.kind, found.nbytes) == (operation.removesuffix("-start"), nbytes)
    pairs = "source_target_pairs={{0,1},{1,0}}"
    (found,) = collectives_of(f"%g = f32[8]{{0}} collective-permute(%a), {pairs}")
    assert (found.kind, found.nbytes) == ("collective-permute", 32)


def test_between_hosts_the_network_sets_the_time():
    line = "ROOT %r = f32[8]{0} all-reduce(%a), replica_groups={}, to_apply=%add"
    (near,) = collectives_of(line)
    (far,) = collectives_of(line, per_host=4)
    assert near.seconds == pytest.approx(32 * 2 * 7 / 8 / H100.interconnect)
    # Each of four devices exchanges its quarter with the other host.
    assert far.seconds == pytest.approx(32 / 4 * 2 / 2 / H100.network)
    alone = line.replace("groups={}", "groups={{0}}")
    assert collectives_of(alone, shape=(1, 1, 1)) == []  # one device sends nothing
    # Transfers between slices count.
    line = """%s = (f32[8]{0}, u32[]{:S(2)}, token[]) send(%a), channel_id=3, \
is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_GATHER"}
  %r = (f32[8]{0}, u32[]{:S(2)}, token[]) recv(%a), channel_id=3, is_host_transfer=true"""
    (found,) = collectives_of(line, per_host=4)
    assert (found.kind, found.axes) == ("all-gather between slices", ("data",))
    assert found.seconds == pytest.approx(32 / H100.network)

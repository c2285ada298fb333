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
    devices = np.empty(count, object)
    for index in range(count):
        devices[index] = types.SimpleNamespace(platform="gpu", process_index=index // per_host)
    axes = ("data", "fsdp", "tensor")
    return types.SimpleNamespace(devices=devices.reshape(shape), size=count, axis_names=axes)


def collectives_of(line, shape=(2, 4, 1), per_host=8):
    text = f"ENTRY %main (a: f32[8]) -> f32[8] {{\n  %a = f32[8]{{0}} parameter(0)\n  {line}\n}}\n"
    return collectives(hlo.parse_module(text), mesh_of(shape, per_host), H100)


GROUPS = [
    ("replica_groups={{0,1,2,3},{4,5,6,7}}", ("fsdp",), 4),
    ("replica_groups=[2,4]<=[8]", ("fsdp",), 4),
    ("replica_groups=[4,2]<=[2,4]T(1,0)", ("data",), 2),
    ("replica_groups=mesh['data'=2,'fsdp'=4,'tensor'=1] {'fsdp'}", ("fsdp",), 4),
    ("replica_groups=mesh['data'=2,'fsdp'=4] {'data','fsdp'}", ("data", "fsdp"), 8),
    ("replica_groups=mesh['devices'=8] {'devices':(1)2}", ("data",), 2),
    ("replica_groups={}", ("data", "fsdp"), 8),
]


@pytest.mark.parametrize(("groups", "axes", "count"), GROUPS)
def test_groups_are_along_axes_of_the_mesh(groups, axes, count):
    (found,) = collectives_of(f"ROOT %r = f32[8]{{0}} all-reduce(%a), {groups}, to_apply=%add")
    assert (found.kind, found.axes) == ("all-reduce", axes)
    assert found.nbytes == 32 * 2 * (count - 1) / count


@pytest.mark.parametrize(
    ("line", "kind", "nbytes"),
    [
        ("%g = f32[32]{0} all-gather(%a), replica_groups=[2,4]<=[8]", "all-gather", 96),
        ("%g = f32[2]{0} reduce-scatter(%a), replica_groups=[2,4]<=[8]", "reduce-scatter", 24),
        ("%g = f32[8]{0} all-to-all(%a), replica_groups=[2,4]<=[8]", "all-to-all", 24),
        (
            "%g = f32[8]{0} collective-permute(%a), source_target_pairs={{0,1},{1,0}}",
            "collective-permute",
            32,
        ),
        (
            "%g = (f32[8]{0}, f32[32]{0}) all-gather-start(%a), replica_groups=[2,4]<=[8]",
            "all-gather",
            96,
        ),
    ],
)
def test_bytes_are_sent_in_a_ring(line, kind, nbytes):
    (found,) = collectives_of(line)
    assert (found.kind, found.nbytes) == (kind, nbytes)


def test_between_hosts_the_network_sets_the_time():
    line = "ROOT %r = f32[8]{0} all-reduce(%a), replica_groups={}, to_apply=%add"
    (near,) = collectives_of(line)
    (far,) = collectives_of(line, per_host=4)
    assert near.seconds == pytest.approx(32 * 2 * 7 / 8 / H100.interconnect)
    # Each of four devices exchanges its quarter with the other host.
    assert far.seconds == pytest.approx(32 / 4 * 2 / 2 / H100.network)


def test_one_device_sends_nothing():
    line = "ROOT %r = f32[8]{0} all-reduce(%a), replica_groups={{0}}, to_apply=%add"
    assert collectives_of(line, shape=(1, 1, 1)) == []


def test_transfers_between_slices_are_counted():
    line = """%s = (f32[8]{0}, u32[]{:S(2)}, token[]) send(%a), channel_id=3, \
is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_GATHER"}
  %r = (f32[8]{0}, u32[]{:S(2)}, token[]) recv(%a), channel_id=3, is_host_transfer=true"""
    (found,) = collectives_of(line, per_host=4)
    assert (found.kind, found.axes) == ("all-gather between slices", ("data",))
    assert found.seconds == pytest.approx(32 / H100.network)

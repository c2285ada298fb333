# SPDX-License-Identifier: Apache-2.0
"""FLOPs, bytes and runs of kernels, counted by hand on small programs."""

from types import SimpleNamespace

import numpy as np
import pytest

from transformer_jax.lab.plan import hlo
from transformer_jax.lab.plan.costs import collectives, kernel_costs
from transformer_jax.runtime.accelerators import ACCELERATORS

DEVICE_MEMORY = frozenset([0])


def costs_of(lines, loops=1):
    """The kernels of a module that ends with these lines, by name."""
    head = "" if "ENTRY" in lines else "ENTRY %main (a: f32[1]) -> f32[1] {"
    kernels = kernel_costs(hlo.parse_module(f"{head}{lines}\n}}\n"), DEVICE_MEMORY, loops)
    return {kernel.instruction.name: kernel for kernel in kernels}


def test_a_product_has_its_flops_and_the_dtype_of_its_operands():
    found = costs_of("""
  %a = bf16[32,16]{1,0} parameter(0)
  %b = bf16[16,8]{1,0} parameter(1)
  ROOT %dot = bf16[32,8]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}""")
    dot = found["dot"]
    assert (dot.flops, dot.dtype) == (2 * 32 * 16 * 8, "bfloat16")
    assert dot.nbytes == 2 * (32 * 16 + 16 * 8 + 32 * 8)


def test_float32_products_are_exact_if_asked_for():
    for attributes, dtype in (
        ("", "tensorfloat32"),
        (", operand_precision={highest,highest}", "float32"),
        (", algorithm=dot_bf16_bf16_f32", "bfloat16"),
    ):
        found = costs_of(f"""
  %a = f32[4,4]{{1,0}} parameter(0)
  ROOT %dot = f32[4,4]{{1,0}} dot(%a, %a), lhs_contracting_dims={{1}}{attributes}""")
        assert found["dot"].dtype == dtype
        assert found["dot"].nbytes == 2 * 4 * 16  # read once


@pytest.mark.parametrize(
    ("shapes", "attributes", "flops"),
    [
        (("1024,128", "128,256", "1024,256"), "dim_labels=bf_io->bf", 2 * 1024 * 128 * 256),
        (  # a product of 16 x 4 pairs of matrices: the window's axes are the batch
            ("16,64,4,32", "16,4,64,32", "16,4,64,64"),
            "window={size=16x4 stride=15x3 lhs_dilate=16x4}, dim_labels=0b1f_01oi->01bf",
            2 * 16 * 4 * 64 * 64 * 32,
        ),
        (
            ("8,4,32", "4,32,16", "8,1,16"),
            "window={size=4}, dim_labels=b0f_0io->b0f",
            2 * 8 * 128 * 16,
        ),
    ],
    ids=["matrices", "batched", "contracted window"],
)
def test_products_of_tpus_are_convolutions(shapes, attributes, flops):
    left, right, out = shapes
    found = costs_of(f"""
  %a = bf16[{left}]{{0}} parameter(0)
  %b = bf16[{right}]{{0}} parameter(1)
  ROOT %conv = bf16[{out}]{{0}} convolution(%a, %b), {attributes}""")
    assert found["conv"].flops == flops


def test_a_fusion_reads_only_the_rows_it_gathers():
    found = costs_of("""
%body (p: f32[1000,8]) -> f32[2,8] {
  %table = f32[1000,8]{1,0} parameter(0)
  %rows = s32[2,1]{1,0} parameter(1)
  %bits = u32[2,8]{1,0} parameter(2)
  %shifted = u32[2,8]{1,0} shift-left(%bits, %bits)
  %mixed = u32[2,8]{1,0} xor(%shifted, %bits)
  ROOT %gather = f32[2,8]{1,0} gather(%table, %rows), offset_dims={1}
}
ENTRY %main (a: f32[1]) -> f32[1] {
  %table = f32[1000,8]{1,0} parameter(0)
  %rows = s32[2,1]{1,0} parameter(1)
  %bits = u32[2,8]{1,0} parameter(2)
  ROOT %fusion = f32[2,8]{1,0} fusion(%table, %rows, %bits), kind=kLoop, calls=%body, \
metadata={op_name="jit(f)/gather"}, backend_config={"estimated_cycles":"120"}""")
    fusion = found["fusion"]
    assert fusion.nbytes == 64 + 8 + 64 + 64
    assert (fusion.integer_ops, fusion.cycles) == (32, 120)


@pytest.mark.parametrize(
    ("known", "times"),
    [(', backend_config={"known_trip_count":{"n":"12"}}', 12), ("", 5)],
    ids=["known length", "unknown length"],
)
def test_a_loop_counts_as_often_as_it_runs(known, times):
    found = costs_of(
        """
%update (p: f32[1000,8]) -> f32[1000,8] {
  %cache = f32[1000,8]{1,0} parameter(0)
  %new = f32[1,8]{1,0} parameter(1)
  %at = s32[] parameter(2)
  ROOT %updated = f32[1000,8]{1,0} dynamic-update-slice(%cache, %new, %at, %at)
}
%again (p: f32[1000,8]) -> f32[1000,8] {
  %given = f32[1000,8]{1,0} parameter(0)
  %new.1 = f32[1,8]{1,0} parameter(1)
  %at.1 = s32[] parameter(2)
  ROOT %written = f32[1000,8]{1,0} fusion(%given, %new.1, %at.1), kind=kLoop, calls=%update
}
%more (p: s32[]) -> pred[] {
  ROOT %yes = pred[] constant(true)
}
ENTRY %main (a: f32[1]) -> f32[1] {
  %cache.0 = f32[1000,8]{1,0} parameter(0)
  ROOT %loop = f32[1000,8]{1,0} while(%cache.0), condition=%more, body=%again"""
        + known,
        loops=5,
    )
    assert list(found) == ["written"]
    assert found["written"].times == times
    assert found["written"].nbytes == 32 + 4 + 32  # an update in place does not copy the array


def test_transfers_count_bytes_moved_and_fast_memory_is_free():
    found = costs_of("""
  %a = f32[100]{0} parameter(0)
  %copy = (f32[100]{0:S(1)}, f32[100]{0}, u32[]{:S(2)}) copy-start(%a)
  %there = f32[100]{0:S(1)} copy-done(%copy)
  ROOT %negate = f32[100]{0:S(1)} negate(%there)""")
    assert found["copy"].is_transfer and found["copy"].nbytes == 404
    assert found["negate"].nbytes == 0
    assert "there" not in found
    # Reading from the device's memory counts wherever the result is.
    found = costs_of("""
  %a = f32[100]{0} parameter(0)
  ROOT %part = f32[25]{0:S(1)} slice(%a), slice={[0:25]}""")
    assert found["part"].nbytes == 100
    # A library of unknown cost is marked.
    found = costs_of("""
  %a = f32[100]{0} parameter(0)
  ROOT %call = f32[100]{0} custom-call(%a), custom_call_target="tpu_custom_call\"""")
    assert found["call"].is_opaque


@pytest.mark.parametrize(
    "call",
    [
        "conditional(%i, %x.0, %x.0), branch_computations={%first, %first}",
        "conditional(%i, %x.0, %x.0), true_computation=%first, false_computation=%first",
        "call(%x.0), to_apply=%first",
        "async-start(%x.0), called_computations={%first}",
    ],
)
def test_what_an_instruction_calls_is_counted(call):
    """Of a conditional, the first branch."""
    found = costs_of(
        """
%first (p: (f32[4,4])) -> f32[4,4] {
  %p = (f32[4,4]{1,0}) parameter(0)
  %x = f32[4,4]{1,0} get-tuple-element(%p), index=0
  ROOT %product = f32[4,4]{1,0} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
ENTRY %main (a: f32[1]) -> f32[1] {
  %i = s32[] parameter(0)
  %x.0 = (f32[4,4]{1,0}) parameter(1)
  ROOT %calls = f32[4,4]{1,0} """
        + call
    )
    assert list(found) == ["product"] and found["product"].flops == 2 * 4 * 4 * 4


def test_an_asynchronous_fusion_counts_once_and_without_its_operands():
    found = costs_of("""
%part (p: f32[6,4,8]) -> f32[1,4,8] {
  %kept = f32[6,4,8]{2,1,0} parameter(0)
  %at = s32[] parameter(1)
  ROOT %taken = f32[1,4,8]{2,1,0} dynamic-slice(%kept, %at, %at, %at), dynamic_slice_sizes={1,4,8}
}
%store (p: f32[6,4,8]) -> f32[6,4,8] {
  %all = f32[6,4,8]{2,1,0} parameter(0)
  %new = f32[1,4,8]{2,1,0} parameter(1)
  %to = s32[] parameter(2)
  ROOT %stored = f32[6,4,8]{2,1,0} dynamic-update-slice(%all, %new, %to, %to, %to)
}
ENTRY %main (a: f32[1]) -> f32[1] {
  %kept.0 = f32[6,4,8]{2,1,0} parameter(0)
  %at.0 = s32[] parameter(1)
  %read = ((f32[6,4,8]{2,1,0}, s32[]), f32[1,4,8]{2,1,0}, u32[]) \
fusion-start(%kept.0, %at.0), kind=kLoop, calls=%part
  %layer = f32[1,4,8]{2,1,0} fusion-done(%read)
  %write = ((f32[6,4,8]{2,1,0}, f32[1,4,8]{2,1,0}, s32[]), f32[6,4,8]{2,1,0}, u32[]) \
fusion-start(%kept.0, %layer, %at.0), kind=kLoop, calls=%store
  ROOT %done = f32[6,4,8]{2,1,0} fusion-done(%write)""")
    assert found.keys() == {"read", "write"}
    assert found["read"].nbytes == found["write"].nbytes == 128 + 128 + 4


def test_the_condition_of_a_tpu_loop_gives_its_trip_count():
    """HLO of TPUs has no note of the length."""
    found = costs_of("""
%until (c: (s32[], f32[8])) -> pred[] {
  %limit = s32[] constant(7)
  %c = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}
%step (c: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %y = f32[8]{0} get-tuple-element(%s), index=1
  %doubled = f32[8]{0} add(%y, %y)
  %n = s32[] get-tuple-element(%s), index=0
  ROOT %both = (s32[], f32[8]{0}) tuple(%n, %doubled)
}
ENTRY %main (a: f32[1]) -> f32[1] {
  %start = s32[] constant(0)
  %x = f32[8]{0} parameter(0)
  %carry = (s32[], f32[8]{0}) tuple(%start, %x)
  ROOT %loop = (s32[], f32[8]{0}) while(%carry), condition=%until, body=%step""")
    assert found["doubled"].times == 7


@pytest.mark.parametrize(
    ("name", "products"), [("splash_mha_fwd_residuals", 2), ("splash_mha_dkv_no_residuals", 5)]
)
@pytest.mark.parametrize(
    ("mask", "visited"), [("constant({{{1,0},{2,1}}})", 3 / 4), ("parameter(4)", 1)]
)
def test_splash_attention_skips_the_blocks_that_its_mask_excludes(name, products, mask, visited):
    found = costs_of(f"""
  %next = s8[1,2,2]{{2,1,0}} parameter(0)
  %query = bf16[3,4,256,64]{{3,2,1,0}} parameter(1)
  %key = bf16[3,2,512,64]{{3,2,1,0}} parameter(2)
  %value = bf16[3,2,512,64]{{3,2,1,0}} parameter(3)
  %mask = s8[1,2,2]{{2,1,0}} {mask}
  ROOT %{name}.1 = bf16[3,4,256,64]{{3,2,1,0}} custom-call(%next, %mask, %query, %key, %value), \
custom_call_target="tpu_custom_call\"""")
    kernel = found[f"{name}.1"]
    of_128 = products * 2 * 3 * 4 * 256 * 512 * 128  # as wide as the matrix unit
    assert kernel.flops == visited * of_128
    assert kernel.dtype == "bfloat16" and not kernel.is_opaque


@pytest.mark.parametrize(
    ("second", "result"),
    [
        ("bf16[8,256,512]{2,1,0}", "f32[4096,512]{1,0}"),
        ("bf16[4096,512]{1,0}", "f32[8,256,512]{2,1,0}"),
    ],
)
def test_a_grouped_product_multiplies_each_row_with_one_matrix(second, result):
    """Forward, and the gradient of the matrices."""
    flops = 2 * 4096 * 256 * 512
    found = costs_of(f"""
  %sizes = s32[9]{{0}} parameter(0)
  %rows = bf16[4096,256]{{1,0}} parameter(1)
  %second = {second} parameter(2)
  ROOT %ragged-dot-none.1 = {result} custom-call(%sizes, %rows, %second), \
custom_call_target="tpu_custom_call\"""")
    kernel = found["ragged-dot-none.1"]
    assert (kernel.flops, kernel.dtype, kernel.is_opaque) == (flops, "bfloat16", False)


H100 = ACCELERATORS["h100"]


def collectives_of(line, shape=(2, 4, 1), per_host=8):
    hosts = np.arange(np.prod(shape)) // per_host
    devices = [SimpleNamespace(platform="gpu", process_index=host) for host in hosts]
    grid = np.array(devices, object).reshape(shape)
    axes = ("data", "fsdp", "tensor")
    mesh = SimpleNamespace(devices=grid, size=grid.size, axis_names=axes)
    text = f"ENTRY %main (a: f32[8]) -> f32[8] {{\n  %a = f32[8]{{0}} parameter(0)\n  {line}\n}}\n"
    return collectives(hlo.parse_module(text), mesh, H100)


GROUPS = [
    ("{{0,1,2,3},{4,5,6,7}}", "fsdp", 4),
    ("[2,4]<=[8]", "fsdp", 4),
    ("[4,2]<=[2,4]T(1,0)", "data", 2),
    ("mesh['data'=2,'fsdp'=4,'tensor'=1] {'fsdp'}", "fsdp", 4),
    ("mesh['data'=2,'fsdp'=4] {'data','fsdp'}", "data+fsdp", 8),
    ("mesh['devices'=8] {'devices':(1)2}", "data", 2),
    ("{}", "data+fsdp", 8),
]


@pytest.mark.parametrize(("groups", "axes", "count"), GROUPS)
def test_groups_are_along_axes_of_the_mesh(groups, axes, count):
    line = f"ROOT %r = f32[8]{{0}} all-reduce(%a), replica_groups={groups}, to_apply=%add"
    (found,) = collectives_of(line)
    assert (found.kind, found.axes) == ("all-reduce", axes)
    assert found.bytes_per_device == 32 * 2 * (count - 1) / count


def test_bytes_are_sent_in_a_ring():
    for shape, operation, nbytes in (
        ("f32[32]{0}", "all-gather", 96),
        ("f32[2]{0}", "reduce-scatter", 24),
        ("f32[8]{0}", "all-to-all", 24),
        ("(f32[8]{0}, f32[32]{0})", "all-gather-start", 96),
    ):
        (found,) = collectives_of(f"%g = {shape} {operation}(%a), replica_groups=[2,4]<=[8]")
        assert (found.kind, found.bytes_per_device) == (operation.removesuffix("-start"), nbytes)
    pairs = "source_target_pairs={{0,1},{1,0}}"
    (found,) = collectives_of(f"%g = f32[8]{{0}} collective-permute(%a), {pairs}")
    assert (found.kind, found.bytes_per_device) == ("collective-permute", 32)


def test_between_hosts_the_network_sets_the_time():
    line = "ROOT %r = f32[8]{0} all-reduce(%a), replica_groups={}, to_apply=%add"
    (near,) = collectives_of(line)
    (far,) = collectives_of(line, per_host=4)
    assert near.ms == pytest.approx(1e3 * 32 * 2 * 7 / 8 / H100.interconnect)
    # Each of four devices exchanges its quarter with the other host.
    assert far.ms == pytest.approx(1e3 * 32 / 4 * 2 / 2 / H100.network)
    alone = line.replace("groups={}", "groups={{0}}")
    assert collectives_of(alone, shape=(1, 1, 1)) == []  # one device sends nothing
    # Transfers between slices count.
    line = """%s = (f32[8]{0}, u32[]{:S(2)}, token[]) send(%a), channel_id=3, \
is_host_transfer=true, frontend_attributes={_xla_megascale_transfer_type="ALL_GATHER"}
  %r = (f32[8]{0}, u32[]{:S(2)}, token[]) recv(%a), channel_id=3, is_host_transfer=true"""
    (found,) = collectives_of(line, per_host=4)
    assert (found.kind, found.axes) == ("all-gather between slices", "data")
    assert found.ms == pytest.approx(1e3 * 32 / H100.network)

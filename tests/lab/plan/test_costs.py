# SPDX-License-Identifier: Apache-2.0
"""FLOPs, bytes and runs of kernels, counted by hand on small programs."""

import pytest

from transformer_jax.lab.plan import hlo
from transformer_jax.lab.plan.costs import kernel_costs

DEVICE_MEMORY = frozenset([0])


def costs_of(lines, computations="", loops=1):
    """The kernels of an entry with these lines, by name."""
    text = f"{computations}\nENTRY %main (a: f32[1]) -> f32[1] {{\n{lines}\n}}\n"
    return {one.name: one for one in kernel_costs(hlo.parse_module(text), DEVICE_MEMORY, loops)}


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


FUSED = """
%body (p: f32[1000,8]) -> f32[2,8] {
  %table = f32[1000,8]{1,0} parameter(0)
  %rows = s32[2,1]{1,0} parameter(1)
  %bits = u32[2,8]{1,0} parameter(2)
  %shifted = u32[2,8]{1,0} shift-left(%bits, %bits)
  %mixed = u32[2,8]{1,0} xor(%shifted, %bits)
  ROOT %gather = f32[2,8]{1,0} gather(%table, %rows), offset_dims={1}
}
"""


def test_a_fusion_reads_only_the_rows_it_gathers():
    found = costs_of(
        """
  %table = f32[1000,8]{1,0} parameter(0)
  %rows = s32[2,1]{1,0} parameter(1)
  %bits = u32[2,8]{1,0} parameter(2)
  ROOT %fusion = f32[2,8]{1,0} fusion(%table, %rows, %bits), kind=kLoop, calls=%body, \
metadata={op_name="jit(f)/gather"}, backend_config={"estimated_cycles":"120"}""",
        FUSED,
    )
    fusion = found["fusion"]
    assert fusion.nbytes == 64 + 8 + 64 + 64
    assert (fusion.integer_ops, fusion.cycles, fusion.op_name) == (32, 120, "jit(f)/gather")


IN_PLACE = """
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
"""


@pytest.mark.parametrize(
    ("known", "times"),
    [(', backend_config={"known_trip_count":{"n":"12"}}', 12), ("", 5)],
    ids=["known length", "unknown length"],
)
def test_a_loop_counts_as_often_as_it_runs(known, times):
    found = costs_of(
        f"""
  %cache.0 = f32[1000,8]{{1,0}} parameter(0)
  ROOT %loop = f32[1000,8]{{1,0}} while(%cache.0), condition=%more, body=%again{known}""",
        IN_PLACE,
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
    # A library of unknown cost is marked.
    found = costs_of("""
  %a = f32[100]{0} parameter(0)
  ROOT %call = f32[100]{0} custom-call(%a), custom_call_target="tpu_custom_call\"""")
    assert found["call"].is_opaque


IN_BACKGROUND = """
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
"""


def test_an_asynchronous_fusion_counts_once_and_without_its_operands():
    found = costs_of(
        """
  %kept.0 = f32[6,4,8]{2,1,0} parameter(0)
  %at.0 = s32[] parameter(1)
  %read = ((f32[6,4,8]{2,1,0}, s32[]), f32[1,4,8]{2,1,0}, u32[]) \
fusion-start(%kept.0, %at.0), kind=kLoop, calls=%part
  %layer = f32[1,4,8]{2,1,0} fusion-done(%read)
  %write = ((f32[6,4,8]{2,1,0}, f32[1,4,8]{2,1,0}, s32[]), f32[6,4,8]{2,1,0}, u32[]) \
fusion-start(%kept.0, %layer, %at.0), kind=kLoop, calls=%store
  ROOT %done = f32[6,4,8]{2,1,0} fusion-done(%write)""",
        IN_BACKGROUND,
    )
    assert found.keys() == {"read", "write"}
    assert found["read"].nbytes == found["write"].nbytes == 128 + 128 + 4


def test_the_condition_of_a_tpu_loop_gives_its_trip_count():
    """HLO of TPUs has no note of the length."""
    found = costs_of(
        """
  %start = s32[] constant(0)
  %x = f32[8]{0} parameter(0)
  %carry = (s32[], f32[8]{0}) tuple(%start, %x)
  ROOT %loop = (s32[], f32[8]{0}) while(%carry), condition=%until, body=%step""",
        """
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
""",
    )
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

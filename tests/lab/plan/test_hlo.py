# SPDX-License-Identifier: Apache-2.0
"""HLO text is parsed into instructions and shapes."""

from transformer_jax.lab.plan import hlo

TPU_LINE = """ENTRY %main.3 (p0: f32[8,128], p1: bf16[128]) -> (f32[8,128], s32[]) {
  %p0 = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="state.params[\\'a\\'][\\'b\\']"}
  %copy.1 = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0}, u32[]{:S(2)}) copy-start(%p0)
  ROOT %fusion = (f32[8,128]{1,0}, s32[]) fusion(%p0, %copy.1), kind=kLoop, calls=%inner, \
metadata={op_name="jit(f)/add;jit(f)"}, backend_config={"a":["(",")"]}
}
"""


def test_shapes_have_dtypes_axes_and_memory_spaces():
    found = hlo.parse_shape("(f32[2,3]{1,0:T(8,128)S(1)}, bf16[], pred[7]{0}, f8e4m3fn[5])")
    assert found == (
        hlo.HloArray("f32", (2, 3), 1),
        hlo.HloArray("bf16", (), 0),
        hlo.HloArray("pred", (7,), 0),
        hlo.HloArray("f8e4m3fn", (5,), 0),
    )
    assert [array.nbytes for array in found] == [24, 2, 7, 5]


def test_an_instruction_is_parsed():
    entry = hlo.parse_module(TPU_LINE)
    assert list(entry) == ["p0", "copy.1", "fusion"]
    assert entry["p0"].arguments == "0" and entry["p0"].op_name == "state.params[\\'a\\'][\\'b\\']"
    root = entry["fusion"]
    assert root.is_root and root.operands == (entry["p0"], entry["copy.1"]) and root.inner == {}
    assert root.op_name == "jit(f)/add"
    assert [array.space for array in entry["copy.1"].arrays] == [1, 0, 2]


def test_an_attribute_may_have_several_lines():
    """Pallas kernels have such attributes."""
    text = """ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %call = f32[8]{0} custom-call(%a), custom_call_target="tpu_custom_call", \
frontend_attributes={kernel_metadata={
"xprof_metadata":"{\\"block_q\\": 1024}"
}}, metadata={op_name="jit(f)/splash"}
  ROOT %tanh = f32[8]{0} tanh(%call)
}
"""
    entry = hlo.parse_module(text)
    assert list(entry) == ["a", "call", "tanh"]
    assert entry["call"].op_name == "jit(f)/splash"

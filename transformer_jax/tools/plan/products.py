"""Arithmetic of a kernel: FLOPs of its products, and the integer operations of random bits."""

import math
import re
from fractions import Fraction

from transformer_jax.tools.plan.hlo import Computation, Instruction, Module, numbers

_SPLASH, _SPLASH_QUERY = "splash_mha_", 2  # names of its calls; the place of the queries
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "s8": "int8", "u8": "int8", "f32": "float32"}


def products(module: Module, one: Instruction, scope: Computation) -> tuple[int, str]:
    """FLOPs of all products of a kernel, and the dtype of the largest one's operands."""
    inner = module.computations.get(one.called("calls") or "", {})
    found = [products(module, each, inner) for each in inner.values()]
    found.append((_product_flops(one, scope), _dtype(one, scope)))
    return sum(flops for flops, _ in found), max(found)[1]


def _product_flops(one: Instruction, scope: Computation) -> int:
    size = one.arrays[0].size if one.arrays else 0
    if one.opcode == "dot":
        contracted = one.dims_of("lhs_contracting_dims")
    elif "$gemm" in one.attributes or "$lt$matmul" in one.attributes:
        listed = re.search(r'"lhs_contracting_dimensions":\[([^\]]*)\]', one.attributes)
        contracted = numbers(listed[1]) if listed else ()
    elif one.opcode == "convolution":
        return 2 * size * _contracted_by_convolution(one, scope)
    elif one.opcode == "custom-call":
        return _attention_flops(one, scope)
    else:
        return 0
    left = scope[one.operands[0]].arrays[0].dims
    return 2 * size * math.prod(left[axis] for axis in contracted)


def _contracted_by_convolution(one: Instruction, scope: Computation) -> int:
    """Multiplications for each output of a convolution, the form that products have on TPUs.

    Batch axes are spatial ones there, dilated so that each output meets one place of the window.
    """
    left, right = (scope[name].arrays[0].dims for name in one.operands[:2])
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes)
    if not labels:
        return 0
    count = right[labels[2].index("i")]
    window = re.search(r"window=\{([^}]*)\}", one.attributes)
    sizes = re.search(r"\bsize=([\dx]+)", window[1]) if window else None
    if window is None or sizes is None or "_dilate" in window[1]:
        return count
    for axis, size in enumerate(numbers(sizes[1].replace("x", ","))):
        count *= min(size, left[labels[1].index(str(axis))])
    return count


def _attention_flops(one: Instruction, scope: Computation) -> int:
    """Of fused attention: two products forward, five backward; 0 of other calls.

    cuDNN leaves nothing out. Splash leaves out the blocks that its mask marks with 0, and a head of
    fewer than 128 elements takes as long as one of 128, the width of a TPU's matrix unit.
    """
    if "$fmha" in one.attributes:
        is_backward, first, lanes, visited = "Backward" in one.attributes, 0, 1, Fraction(1)
    elif one.name.startswith(_SPLASH):
        is_backward, first, lanes = one.name.startswith(_SPLASH + "d"), _SPLASH_QUERY, 128
        visited = _visited(scope.get(one.operands[1]))
    else:
        return 0
    query, key = (scope[name].arrays[0].dims for name in one.operands[first : first + 2])
    length = key[1] if first == 0 else key[-2]
    products = 5 if is_backward else 2
    size = math.prod(query[:-1]) * max(query[-1], lanes)
    return int(visited * products * 2 * size * length)


def _visited(mask: Instruction | None) -> Fraction:
    """The part of the blocks of a splash mask that are computed, where the program says it."""
    blocks = numbers(mask.arguments) if mask and mask.opcode == "constant" else ()
    return Fraction(sum(block > 0 for block in blocks), len(blocks)) if blocks else Fraction(1)


def _dtype(one: Instruction, scope: Computation) -> str:
    """Of the operands of a product; float32 that the hardware may round is "tensorfloat32"."""
    first = _SPLASH_QUERY if one.name.startswith(_SPLASH) else 0
    known = [scope[name].arrays for name in one.operands[first : first + 1] if name in scope]
    dtype = known[0][0].dtype if known and known[0] else "f32"
    if "algorithm=dot_bf16_bf16_f32" in one.attributes:
        return "bfloat16"  # rounds its operands as it reads them
    exact = re.search(r"operand_precision=\{highest|algorithm=dot_f32_f32_f32\b", one.attributes)
    return "tensorfloat32" if dtype == "f32" and not exact else _DTYPES.get(dtype, "float32")


def integer_ops(module: Module, inner: Computation) -> int:
    """32-bit operations that random bits are made of; a rotation (two shifts, one or) is one."""
    total = 0
    for each in inner.values():
        if each.opcode in ("xor", "add", "shift-left") and each.arrays[0].dtype == "u32":
            total += each.arrays[0].size
        total += integer_ops(module, module.computations.get(each.called("calls") or "", {}))
    return total

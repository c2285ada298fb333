"""Arithmetic of a kernel: FLOPs of its products, and the integer operations of random bits."""

import math
import re

from transformer_jax.tools.plan.hlo import Computation, Instruction, Module, numbers

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
    else:
        return _attention_flops(one, scope) if "$fmha" in one.attributes else 0
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
    """Of cuDNN's fused attention: two products forward, five backward, none of them left out."""
    query, key = (scope[name].arrays[0].dims for name in one.operands[:2])
    products = 5 if "Backward" in one.attributes else 2
    return products * 2 * math.prod(query) * key[1]


def _dtype(one: Instruction, scope: Computation) -> str:
    """Of the operands of a product; float32 that the hardware may round is "tensorfloat32"."""
    known = [scope[name].arrays for name in one.operands[:1] if name in scope]
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

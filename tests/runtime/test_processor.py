# SPDX-License-Identifier: Apache-2.0
"""Bfloat16 is used where a measurement, made once for a processor, finds it faster."""

from unittest.mock import Mock

import jax
import jax.numpy as jnp
import jaxlib
import pytest

from transformer_jax.nn.ops import product_dtype
from transformer_jax.runtime import platform as processor
from transformer_jax.runtime.platform import multiplies_bfloat16

AMX = "avx512f amx_bf16 amx_tile"
ZEN_4 = "avx512f avx512_bf16"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(flags, float32=, bfloat16=)`: a new process on a CPU with these flags, on which the
    products take these seconds. Returns the mock that measures a dtype."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(processor, "_CPUINFO", cpuinfo)

    def start(flags, **seconds):
        cpuinfo.write_text(f"model name : a CPU\nflags : fpu {flags} sse\n")
        measure = Mock(side_effect=seconds.get)
        monkeypatch.setattr(processor, "_seconds_of_products", measure)
        forget()
        return measure

    yield start
    forget()


def forget():
    """Makes the process ask again which processor it runs on."""
    processor._kept_seconds.cache_clear()
    processor.processor_lines.cache_clear()


@pytest.mark.parametrize("flags", [AMX, ZEN_4])
@pytest.mark.parametrize(("bfloat16", "faster"), [(0.5, True), (1.5, False), (float("inf"), False)])
def test_the_measurement_decides(machine, flags, bfloat16, faster):
    machine(flags, float32=1.0, bfloat16=bfloat16)
    assert multiplies_bfloat16() == faster


def test_a_processor_is_measured_once(machine, monkeypatch, tmp_path):
    measured = machine("avx512f avx512_vnni")  # without the instructions
    assert not multiplies_bfloat16() and not measured.called
    machine(ZEN_4, float32=1.0, bfloat16=0.5)
    assert multiplies_bfloat16()
    measured = machine(ZEN_4, float32=1.0, bfloat16=2.0)  # another process, under load
    assert multiplies_bfloat16() and not measured.called
    measured = machine(AMX, float32=1.0, bfloat16=2.0)
    assert not multiplies_bfloat16() and measured.call_count == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cpuinfo"))  # no folder: nothing is kept
    machine(AMX, float32=1.0, bfloat16=0.5)
    assert multiplies_bfloat16()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    machine(ZEN_4, float32=1.0, bfloat16=0.5)
    assert not multiplies_bfloat16()


def test_products_are_measured_while_a_function_is_traced(machine, monkeypatch, tmp_path):
    measure = processor._seconds_of_products
    machine(ZEN_4)
    monkeypatch.setattr(processor, "_seconds_of_products", measure)
    monkeypatch.setattr(processor, "ONEDNN", {})  # its loop would take minutes on other processors
    dtypes = []
    jax.jit(lambda x: dtypes.append(product_dtype("auto")) or x)(1.0)
    assert list((tmp_path / "cache" / "transformer_jax" / "processors").iterdir())
    seconds = processor._kept_seconds((jaxlib.__version__, *processor.processor_lines()))
    assert all(0 < value < 60 for value in seconds.values())
    faster = min(seconds, key=seconds.get)
    assert dtypes == [jnp.dtype(faster)]


def test_an_option_that_the_compiler_does_not_know_is_not_used(monkeypatch):
    monkeypatch.setattr(processor, "ONEDNN", {"xla_cpu_option_of_no_release": True})
    assert processor._seconds_of_products("bfloat16") == float("inf")

# SPDX-License-Identifier: Apache-2.0
"""Dtypes, compiler options, peaks and memory of the device that programs are compiled for."""

import resource
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import jaxlib
import pytest

from tests.refusals import assert_refused
from transformer_jax.nn.ops import product_dtype
from transformer_jax.runtime import platform
from transformer_jax.runtime.platform import multiplies_bfloat16, peak_flops

ONEDNN = {"xla_cpu_experimental_onednn_custom_call": True}


def test_compiled_programs_are_kept_where_only_the_user_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    with jax._src.config.compilation_cache_dir(None):
        platform.use_compilation_cache()
    folder = tmp_path / "transformer_jax" / "xla"
    assert updates["jax_compilation_cache_dir"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("is_faster", "device", "dtype", "options"),
    [
        (False, None, "float32", {}),
        (True, None, "bfloat16", ONEDNN),
        (True, ("tpu", "TPU v5 lite"), "bfloat16", {}),
        (True, ("gpu", "NVIDIA A100-SXM4-80GB"), "bfloat16", {}),
        (True, ("gpu", "Tesla T4"), "float32", {}),
        (True, ("gpu", "an unknown GPU"), "bfloat16", {}),
    ],
)
def test_auto_is_the_faster_dtype_of_the_cpu_or_of_the_device_that_is_compiled_for(
    is_faster, device, dtype, options, monkeypatch, compiling_for
):
    monkeypatch.setattr(platform, "multiplies_bfloat16", lambda: is_faster)
    if device:
        compiling_for(*device)
    assert product_dtype("auto") == jnp.dtype(dtype)
    assert platform.compiler_options() == options


def test_reproducible_programs_of_a_gpu_add_in_a_fixed_order(compiling_for):
    with platform.reproducible(True):
        on_cpu = platform.compiler_options()
    assert on_cpu == platform.compiler_options()
    compiling_for("gpu", "NVIDIA H100 80GB HBM3")
    for required, options in ((True, {"xla_gpu_deterministic_ops": True}), (False, {})):
        with platform.reproducible(required):
            assert platform.compiler_options() == options


def test_a_function_is_traced_again_for_another_kind_of_device(compiling_for):
    traced = []
    double = jax.jit(lambda x: traced.append(platform.target().kind) or 2 * x)
    here = jax.devices()[0].device_kind
    double(1.0)
    with platform.compiling_for(jax.devices()[0]):
        double(1.0)  # the devices of the job: nothing changes
    compiling_for("gpu", "Tesla T4")
    double(1.0)
    assert traced == [here, "Tesla T4"]


def test_an_unknown_gpu_has_bfloat16_from_capability_8_on():
    gpu = SimpleNamespace(platform="gpu", device_kind="NVIDIA of another year")
    for gpu.compute_capability, native in (("7.0", False), ("12.0", True)):
        with platform.compiling_for(gpu):
            assert platform.has_bfloat16_products() == native


def test_peaks_are_looked_up_by_the_start_of_the_kind():
    peaks = {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA L40S": 362e12,
        "NVIDIA L4": 121e12,
        "NVIDIA A10": 125e12,
        "NVIDIA A10G": None,
        "TPU v5 lite": 197e12,
        "Abacus": None,
    }
    devices = {kind: SimpleNamespace(platform="gpu", device_kind=kind) for kind in peaks}
    assert {kind: peak_flops(devices[kind], jnp.bfloat16) for kind in peaks} == peaks
    # A peak measured on a CPU depends on the load: the MFU of a training was above 1 at times.
    assert peak_flops(jax.devices()[0], jnp.float32) is None


def test_content_larger_than_the_memory_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(platform, "usable_memory", lambda: 24 * 2**30)
    require = partial(platform.require_memory, held="weights")
    require(24 * 2**30)
    sizes = "weights need at least 48 GiB; this machine has 24 GiB"
    assert_refused({sizes: partial(require, 48 * 2**30)})
    assert_refused({"at least 4,096 GiB": partial(require, 2**42)})
    monkeypatch.setattr(platform, "usable_memory", lambda: None)
    require(2**80)


def test_usable_memory_honors_the_limits_of_the_process_and_its_container(monkeypatch, tmp_path):
    assert 2**28 < platform.usable_memory() < 2**50
    limits = (2**27, resource.RLIM_INFINITY)
    monkeypatch.setattr(platform.resource, "getrlimit", lambda which: limits)
    assert platform.usable_memory() == 2**27
    monkeypatch.setattr(platform, "_CONTAINER_LIMIT", tmp_path / "memory.max")
    for text, usable in (("1048576\n", 2**20), ("max\n", 2**27)):
        (tmp_path / "memory.max").write_text(text)
        assert platform.usable_memory() == usable


# --- Bfloat16 on a CPU: where a measurement, made once for a processor, finds it faster ---

AMX = "avx512f amx_bf16 amx_tile"
ZEN_4 = "avx512f avx512_bf16"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """`machine(flags, float32=, bfloat16=)`: a new process on a CPU with these flags, on which the
    products take these seconds. Returns the mock that measures a dtype."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(platform, "_CPUINFO", cpuinfo)

    def forget():
        platform._kept_seconds.cache_clear()
        platform.processor_lines.cache_clear()

    def start(flags, **seconds):
        cpuinfo.write_text(f"model name : a CPU\nflags : fpu {flags} sse\n")
        measure = Mock(side_effect=seconds.get)
        monkeypatch.setattr(platform, "_seconds_of_products", measure)
        forget()
        return measure

    yield start
    forget()


@pytest.mark.parametrize("flags", [AMX, ZEN_4])
@pytest.mark.parametrize("bfloat16", [0.5, 1.5, float("inf")])
def test_the_measurement_decides(machine, flags, bfloat16):
    machine(flags, float32=1.0, bfloat16=bfloat16)
    assert multiplies_bfloat16() == (bfloat16 < 1.0)


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
    measure = platform._seconds_of_products
    machine(ZEN_4)
    monkeypatch.setattr(platform, "_seconds_of_products", measure)
    monkeypatch.setattr(platform, "ONEDNN", {})  # its loop would take minutes on other processors
    dtypes = []
    jax.jit(lambda x: dtypes.append(product_dtype("auto")) or x)(1.0)
    assert list((tmp_path / "cache" / "transformer_jax" / "processors").iterdir())
    seconds = platform._kept_seconds((jaxlib.__version__, *platform.processor_lines()))
    assert all(0 < value < 60 for value in seconds.values())
    faster = min(seconds, key=seconds.get)
    assert dtypes == [jnp.dtype(faster)]


def test_an_option_that_the_compiler_does_not_know_is_not_used(monkeypatch):
    monkeypatch.setattr(platform, "ONEDNN", {"xla_cpu_option_of_no_release": True})
    assert platform._seconds_of_products("bfloat16") == float("inf")

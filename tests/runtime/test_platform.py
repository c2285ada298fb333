"""What is asked of the device that programs are compiled for."""

import resource

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.errors import UserError
from transformer_jax.nn.ops import product_dtype
from transformer_jax.runtime import platform
from transformer_jax.runtime.platform import peak_flops


@pytest.fixture
def cpu_with_flags(monkeypatch, tmp_path):
    """Pretends that this machine's CPU has these flags."""

    def pretend(flags):
        cpuinfo = tmp_path / "cpuinfo"
        cpuinfo.write_text(f"model name : a CPU\nflags : fpu {flags} sse\n")
        monkeypatch.setattr(platform, "Path", lambda path: cpuinfo)
        platform._is_cpu_with_bfloat16.cache_clear()

    yield pretend
    platform._is_cpu_with_bfloat16.cache_clear()


def test_auto_is_float32_on_a_cpu_without_bfloat16(cpu_with_flags):
    cpu_with_flags("avx512f avx512_vnni")
    assert product_dtype("auto") == jnp.float32
    assert platform.compiler_options() == {}


@pytest.mark.parametrize("flags", ["avx512f amx_bf16 amx_tile", "avx512f avx512_bf16"])
def test_auto_is_bfloat16_on_a_cpu_with_such_instructions(flags, cpu_with_flags, monkeypatch):
    """AMX of Sapphire Rapids, AVX512-BF16 of Zen 4 and Cooper Lake."""
    cpu_with_flags(flags)
    monkeypatch.setattr(platform, "_compiler_knows", lambda options: True)
    assert product_dtype("auto") == jnp.bfloat16
    assert platform.compiler_options() == {"xla_cpu_experimental_onednn_custom_call": True}


@pytest.mark.parametrize(
    "name, kind, dtype",
    [
        ("tpu", "TPU v5 lite", "bfloat16"),
        ("gpu", "NVIDIA A100-SXM4-80GB", "bfloat16"),
        ("gpu", "Tesla T4", "float32"),
        ("gpu", "a GPU of no table", "bfloat16"),
    ],
)
def test_auto_goes_by_the_device_that_is_compiled_for(
    name, kind, dtype, cpu_with_flags, compiling_for
):
    cpu_with_flags("avx512f amx_bf16")
    compiling_for(name, kind)
    assert product_dtype("auto") == jnp.dtype(dtype)
    assert platform.compiler_options() == {}


def test_what_was_traced_for_one_device_is_traced_again_for_another(compiling_for):
    traced = []
    double = jax.jit(lambda x: traced.append(platform.target().kind) or 2 * x)
    here = jax.devices()[0].device_kind
    double(1.0)
    with platform.compiling_for(jax.devices()[0]):
        double(1.0)  # the devices of the job: nothing changes
    compiling_for("gpu", "Tesla T4")
    double(1.0)
    assert traced == [here, "Tesla T4"]


def test_a_gpu_of_no_table_is_asked_for_its_capability():
    for capability, native in (("7.0", False), ("12.0", True)):
        device = Device("NVIDIA of another year")
        device.compute_capability = capability
        with platform.compiling_for(device):
            assert platform.has_bfloat16_products() == native


def test_options_are_those_that_the_compiler_knows(cpu_with_flags, monkeypatch):
    cpu_with_flags("amx_bf16")
    monkeypatch.setattr(platform, "_compiler_knows", lambda options: False)
    assert platform.compiler_options() == {}


def test_an_unknown_option_is_noticed():
    assert platform._compiler_knows(())
    assert not platform._compiler_knows((("xla_cpu_option_of_no_release", True),))


# --- Peaks.


class Device:
    platform = "gpu"

    def __init__(self, kind):
        self.device_kind = kind


@pytest.mark.parametrize(
    "kind, peak",
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("Tesla T4", 8.1e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("Abacus", None),
    ],
)
def test_peaks_go_by_the_start_of_the_kind(kind, peak):
    assert peak_flops(Device(kind), jnp.bfloat16) == peak


def test_the_peak_of_a_cpu_is_measured():
    assert 1e9 < peak_flops(jax.devices()[0], jnp.float32) < 1e14


# FOLDED tests/runtime/test_platform.py: What cannot fit into memory is refused with both sizes.


def test_what_fits_is_let_through_and_what_does_not_is_told(monkeypatch):
    monkeypatch.setattr(platform, "memory_of_device", lambda: 24 * 2**30)
    platform.require_memory(24 * 2**30, "weights")
    message = "^weights need at least 48 GiB; this machine has 24 GiB$"
    with pytest.raises(UserError, match=message):
        platform.require_memory(48 * 2**30, "weights")
    with pytest.raises(UserError, match="at least 4,096 GiB"):
        platform.require_memory(2**42, "weights")
    monkeypatch.setattr(platform, "memory_of_device", lambda: None)
    platform.require_memory(2**80, "weights")


def test_host_memory_is_what_this_process_may_use(monkeypatch, tmp_path):
    whole = platform.host_memory()
    assert 2**28 < whole < 2**50
    limits = (2**27, resource.RLIM_INFINITY)
    monkeypatch.setattr(platform.resource, "getrlimit", lambda which: limits)
    assert platform.host_memory() == 2**27
    monkeypatch.setattr(platform, "_OF_CONTAINER", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("1048576\n")
    assert platform.host_memory() == 2**20
    (tmp_path / "memory.max").write_text("max\n")
    assert platform.host_memory() == 2**27

# SPDX-License-Identifier: Apache-2.0
"""Dtypes, compiler options, peaks and memory of the device that programs are compiled for."""

import resource

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.errors import UserError
from transformer_jax.nn.ops import product_dtype
from transformer_jax.runtime import platform
from transformer_jax.runtime.platform import peak_flops


class Device:
    platform = "gpu"

    def __init__(self, kind):
        self.device_kind = kind


@pytest.fixture
def cpu_with(monkeypatch):
    """`cpu_with("bfloat16")`: pretends that products are faster in this dtype on the CPU."""

    def pretend(dtype):
        monkeypatch.setattr(platform, "multiplies_bfloat16", lambda: dtype == "bfloat16")

    return pretend


def test_compiled_programs_are_kept_where_only_the_user_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    updates = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    with jax._src.config.compilation_cache_dir(None):
        platform.use_compilation_cache()
    folder = tmp_path / "transformer_jax" / "xla"
    assert updates["jax_compilation_cache_dir"] == str(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_auto_is_the_faster_dtype_of_the_cpu(dtype, cpu_with):
    cpu_with(dtype)
    onednn = {"xla_cpu_experimental_onednn_custom_call": True}
    assert product_dtype("auto") == jnp.dtype(dtype)
    assert platform.compiler_options() == (onednn if dtype == "bfloat16" else {})


@pytest.mark.parametrize(
    "name, kind, dtype",
    [
        ("tpu", "TPU v5 lite", "bfloat16"),
        ("gpu", "NVIDIA A100-SXM4-80GB", "bfloat16"),
        ("gpu", "Tesla T4", "float32"),
        ("gpu", "an unknown GPU", "bfloat16"),
    ],
)
def test_auto_depends_on_the_device_that_is_compiled_for(
    name, kind, dtype, cpu_with, compiling_for
):
    cpu_with("bfloat16")
    compiling_for(name, kind)
    assert product_dtype("auto") == jnp.dtype(dtype)
    assert platform.compiler_options() == {}


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
    for capability, native in (("7.0", False), ("12.0", True)):
        device = Device("NVIDIA of another year")
        device.compute_capability = capability
        with platform.compiling_for(device):
            assert platform.has_bfloat16_products() == native


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
def test_peaks_are_looked_up_by_the_start_of_the_kind(kind, peak):
    assert peak_flops(Device(kind), jnp.bfloat16) == peak


def test_a_cpu_has_no_known_peak():
    """A measured one depends on the load: the MFU of a training was above 1 at times."""
    assert peak_flops(jax.devices()[0], jnp.float32) is None


def test_content_larger_than_the_memory_is_refused_with_both_sizes(monkeypatch):
    monkeypatch.setattr(platform, "usable_memory", lambda: 24 * 2**30)
    platform.require_memory(24 * 2**30, "weights")
    message = "^weights need at least 48 GiB; this machine has 24 GiB$"
    with pytest.raises(UserError, match=message):
        platform.require_memory(48 * 2**30, "weights")
    with pytest.raises(UserError, match="at least 4,096 GiB"):
        platform.require_memory(2**42, "weights")
    monkeypatch.setattr(platform, "usable_memory", lambda: None)
    platform.require_memory(2**80, "weights")


def test_usable_memory_honors_the_limits_of_the_process_and_its_container(monkeypatch, tmp_path):
    whole = platform.usable_memory()
    assert 2**28 < whole < 2**50
    limits = (2**27, resource.RLIM_INFINITY)
    monkeypatch.setattr(platform.resource, "getrlimit", lambda which: limits)
    assert platform.usable_memory() == 2**27
    monkeypatch.setattr(platform, "_CONTAINER_LIMIT", tmp_path / "memory.max")
    (tmp_path / "memory.max").write_text("1048576\n")
    assert platform.usable_memory() == 2**20
    (tmp_path / "memory.max").write_text("max\n")
    assert platform.usable_memory() == 2**27

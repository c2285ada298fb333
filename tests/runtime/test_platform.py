# SPDX-License-Identifier: Apache-2.0
"""Dtypes, compiler options, peaks and memory of the device that programs are compiled for."""

import resource
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tests.refusals import assert_refused
from transformer_jax.nn.ops import product_dtype
from transformer_jax.runtime import platform
from transformer_jax.runtime.platform import peak_flops

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

"""One step, many devices: whatever divides the work, the metrics are those of one device."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

from transformer_jax.parallel import sharding
from transformer_jax.parallel.engines import CompiledStep, JitEngine, create_state, make_engine
from transformer_jax.parallel.sharding import ParallelConfig

LAYOUTS = ["pmap 8", "data 8", "fsdp 8", "tensor 4", "2 x 2 x 2"]


@pytest.fixture(scope="module")
def eight_devices(made_once):
    """What `eight_devices.py` prints."""
    return json.loads(made_once("eight_devices.json", of_eight_devices))


def of_eight_devices():
    """The same as text; float32 products, whatever this CPU has."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("eight_devices.py")],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("layout", [*LAYOUTS, "two slices"])
def test_loss_and_gradient_are_those_of_one_device(eight_devices, layout):
    apart = eight_devices["without dropout"][layout]
    assert apart["loss"] < 1e-5 and apart["gradient"] < 1e-5


@pytest.mark.parametrize("layout", ["fsdp 8", "2 x 2 x 2"])
def test_a_mesh_draws_the_dropout_of_one_device(eight_devices, layout):
    apart = eight_devices["with dropout"][layout]
    assert apart["loss"] < 1e-5 and apart["gradient"] < 1e-5


@pytest.mark.parametrize("layout", ["pmap 8", "fsdp 8"])
def test_adapters_train_as_on_one_device(eight_devices, layout):
    alone, run = (eight_devices[f"adapters, {one}"] for one in ("one", layout))
    np.testing.assert_allclose(run["losses"], alone["losses"], rtol=1e-5)
    assert run["losses"][2] < run["losses"][0]
    assert run["share"] < 0.2 or layout != "fsdp 8"  # adapters and their base are divided


def test_bits_of_the_hardware_are_each_devices_own(eight_devices):
    """Those of its rows; the devices that share rows draw the same."""
    found = eight_devices["hardware"]
    assert found["distinct"] == 16 and found["agree"]
    without = eight_devices["losses"]["2 x 2 x 2"][:2]
    assert found["losses"] == pytest.approx(without, rel=0.1) and found["losses"] != without


@pytest.mark.parametrize("layout", ["pmap 8", "2 x 2 x 2"])
def test_micro_batches_divide_too(eight_devices, layout):
    apart = eight_devices["accumulated"][layout]
    assert apart["loss"] < 1e-5 and apart["gradient"] < 1e-5


def test_rows_of_a_device_make_the_micro_batches_that_they_resolve_to(eight_devices):
    by_rows = eight_devices["accumulated by rows"]
    assert by_rows == {"2 x 2 x 2": eight_devices["accumulated"]["2 x 2 x 2"]}


@pytest.mark.parametrize("what", ["scanned", "tiled", "kernel"])
def test_other_ways_to_compute_the_same_divide_too(eight_devices, what):
    """Layers in a loop, in micro-batches; tiles of a vocabulary that is divided; a kernel on each
    device's rows and heads."""
    apart = eight_devices[what]["2 x 2 x 2"]
    assert apart["loss"] < 1e-5 and apart["gradient"] < 1e-5


def test_a_kernel_gets_each_devices_part(eight_devices):
    assert eight_devices["own part"] == [16 // 4, 4 // 2]


@pytest.mark.parametrize(
    "model, layout",
    [
        ("language_modeling", "pmap 8"),
        ("classification", "2 x 2 x 2"),
        ("recurrent", "2 x 2 x 2"),  # beside pmap
    ],
)
def test_other_models_divide_too(eight_devices, model, layout):
    apart = eight_devices[model][layout]
    assert apart["loss"] < 1e-5 and apart["gradient"] < 1e-5


@pytest.mark.parametrize("layout", [*LAYOUTS, "two slices"])
def test_twenty_steps_stay_together(eight_devices, layout):
    losses, alone = (eight_devices[of][layout] for of in ("losses", "losses of one"))
    assert alone[-1] < alone[0] - 0.3  # it learns
    assert losses == pytest.approx(alone, rel=1e-4)


def test_fsdp_divides_parameters_and_optimizer_state(eight_devices):
    assert eight_devices["share"]["fsdp 8"] == pytest.approx(1 / 8, abs=0.005)
    assert eight_devices["share"]["data 8"] == eight_devices["share"]["pmap 8"] == 1


def test_one_device_is_served_by_jit():
    assert isinstance(make_engine(ParallelConfig()), JitEngine)
    assert make_engine(ParallelConfig()).mesh.size == jax.device_count()


def test_pmap_divides_nothing_but_rows():
    class Mesh:
        size, shape = 8, {"data": 4, "fsdp": 2, "tensor": 1}
        devices = np.array(jax.devices()[:1])

    with pytest.raises(ValueError, match="set engine to 'jit'"):
        make_engine(ParallelConfig("pmap"), Mesh())


class Lowered:
    """Compiles once it may, to the options that it was given."""

    def __init__(self):
        self.may = threading.Event()

    def compile(self, options):
        assert self.may.wait(timeout=30)
        if options is None:
            raise MemoryError("too large")
        return options


def test_a_step_is_compiled_beside_what_its_owner_does():
    lowered = Lowered()
    step = CompiledStep.start(lowered, dict, {"an": "option"})
    assert not step.compiling.done()
    lowered.may.set()
    assert step.executable == {"an": "option"}


def test_what_fails_to_compile_says_so_where_it_is_needed():
    lowered = Lowered()
    step = CompiledStep.start(lowered, dict)
    lowered.may.set()
    with pytest.raises(MemoryError, match="too large"):
        step({}, {})


def test_a_state_is_the_same_however_fast_it_was_compiled():
    init = lambda seed: {"kernel": jax.random.normal(jax.random.key(seed), (64, 32))}  # noqa: E731
    abstract = sharding.add_shardings(jax.eval_shape(init, 7), make_engine(ParallelConfig()).mesh)
    made, expected = create_state(init, 7, abstract), jax.jit(init)(7)
    np.testing.assert_allclose(made["kernel"], expected["kernel"], rtol=0, atol=1e-6)

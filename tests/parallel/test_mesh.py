"""Which sizes fit the devices, and where rows come to lie."""

import jax
import numpy as np
import pytest

from transformer_jax.parallel.mesh import (
    ParallelConfig,
    make_mesh,
    mesh_of,
    place_like,
    place_own_rows,
    replicated,
    round_up_rows,
    row_shards,
)


class Device:
    """Enough of one to count."""


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fsdp": 3}, "fsdp 3 x tensor 1 do not divide the 8 devices .* one of 1, 2, 4, 8"),
        ({"data": 2, "tensor": 2}, "data 2 x fsdp 1 x tensor 2 are 4 .* set data to 4 or none"),
        ({"data": 16}, "are 16 devices; here are 8: set data to 8"),
    ],
)
def test_axes_that_do_not_fit_the_devices_say_what_would(options, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(ParallelConfig(**options), [Device()] * 8)


def test_the_data_axis_takes_all_devices_that_are_left():
    mesh = make_mesh(ParallelConfig())
    assert dict(mesh.shape) == {"data": jax.device_count(), "fsdp": 1, "tensor": 1}
    assert row_shards(mesh) == jax.device_count()


def test_rows_go_where_the_parameters_are():
    mesh = make_mesh(ParallelConfig())
    batch = {"x": np.arange(12).reshape(4, 3)}
    params = jax.device_put({"w": np.zeros(2)}, replicated(mesh))
    for placed in (place_own_rows(batch, mesh), place_like(params, batch)):
        np.testing.assert_array_equal(placed["x"], batch["x"])
        assert mesh_of(placed) == mesh


def test_parameters_without_a_mesh_leave_the_batch_alone():
    batch = {"x": np.zeros((4, 3))}
    assert place_like({"w": np.zeros(2)}, batch) is batch
    assert round_up_rows(5, {"w": np.zeros(2)}) == 5
    assert mesh_of({}) is None

"""JAX's plugins for devices that are not here, which `plan` brings to machines without them."""

import glob
import importlib.util
import os

COMPILERS = ("libtpu", "jax_cuda13_plugin", "jax_cuda12_plugin")
DEVICES = (
    *("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd"),  # the last: AMD's
    *("/dev/accel*", "/dev/vfio/[0-9]*"),
)
"""Files that GPUs and TPUs are reached through."""


def leave_out_absent_devices() -> None:
    """Has JAX use the CPU alone where a maker's compiler is installed and no device is here.

    It would try to start each plugin otherwise, and print for each why it could not. Does nothing
    where the user has chosen (`JAX_PLATFORMS`); must come before JAX is imported.
    """
    installed = any(importlib.util.find_spec(name) for name in COMPILERS)
    if installed and not any(glob.glob(path) for path in DEVICES):
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

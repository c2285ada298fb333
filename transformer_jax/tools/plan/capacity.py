"""How much of a device's memory a program may use."""

from transformer_jax.runtime.accelerators import Accelerator

GIB = 2**30
_JAX_TAKES = 0.75  # of a GPU's memory, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise
_LIBTPU_LEAVES = 0.98  # of a TPU's: 15.75 of a v5e's 16 GiB


def usable(accelerator: Accelerator) -> float:
    """Bytes: of a GPU what JAX takes by default, of a TPU what its runtime leaves to programs."""
    return accelerator.memory * (_JAX_TAKES if accelerator.platform == "gpu" else _LIBTPU_LEAVES)

"""Engines: how the pure training step becomes a compiled one."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import jax

from transformer_jax import precision

_ENGINES = ("auto", "jit")


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    """Which engine runs the step.

    Attributes:
      engine: "jit" on one device; "auto" chooses it.

    Raises:
      ValueError: an unknown engine.
    """

    engine: str = "auto"

    def __post_init__(self):
        if self.engine not in _ENGINES:
            raise ValueError(f"engine is {self.engine!r}, not one of {', '.join(_ENGINES)}")


def compile_step(train_step: Callable) -> Callable:
    """The step `(state, batch) -> (state, sums)` compiled for one device; the state is donated."""
    return jax.jit(train_step, donate_argnums=0, compiler_options=precision.compiler_options())


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache, private to the user, for the next start.

    A directory that the user has set for JAX, or a cache that cannot be written, is left as it is.
    """
    if jax.config.jax_compilation_cache_dir:
        return
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = root / "transformer_jax" / "xla"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)

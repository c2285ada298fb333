"""Compiled programs kept for the next start."""

import os
import warnings
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache folder, readable by the user alone.

    Does nothing where the user has set a directory for JAX, or the folder cannot be written.
    Programs with oneDNN's products (`platform.compiler_options`) are not kept: jaxlib cannot
    serialize them, and JAX would warn of each.
    """
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache.*bad_alloc")
    if jax.config.jax_compilation_cache_dir:
        return
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        directory = root / "transformer_jax" / "xla"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter where the user has no home
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)

"""Compiled programs kept for the next start."""

import os
import warnings
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache, private to the user.

    A directory that the user has set for JAX, or a cache that cannot be written, is left as it is.
    Programs with products of oneDNN's (`platform.compiler_options`) cannot be kept: jaxlib fails
    to write them down, and JAX would warn of each.
    """
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache.*bad_alloc")
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

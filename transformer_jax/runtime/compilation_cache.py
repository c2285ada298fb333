"""Compiled programs kept for the next start."""

import warnings

import jax

from transformer_jax.runtime.cache_folder import cache_folder


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache folder, readable by the user alone.

    Does nothing where the user has set a directory for JAX, or the folder cannot be written.
    Programs with oneDNN's products (`platform.compiler_options`) are not kept: jaxlib cannot
    serialize them, and JAX would warn of each.
    """
    warnings.filterwarnings("ignore", "Error writing persistent compilation cache.*bad_alloc")
    if jax.config.jax_compilation_cache_dir:
        return
    directory = cache_folder("xla")
    if directory is None:
        return
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)

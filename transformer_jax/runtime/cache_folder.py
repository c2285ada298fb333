"""Where this program keeps what it can make or bring again."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """A folder of the user's cache (`$XDG_CACHE_HOME`, else `~/.cache`), which need not be there;
    None where the user has no home."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    return root / "transformer_jax" / name

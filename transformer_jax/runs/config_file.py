"""Running a config file: Python with a `get_config()`."""

import contextlib
import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import UserError


def run_config_file(path: str | Path) -> dict[Any, Any]:
    """What `get_config()` of a file returns, as nested dicts.

    The file may import its siblings by name (`from wmt14_en_de_base import get_config`), whatever
    the current directory is: like a script's, its folder stands first on the import path.

    Raises:
      UserError: no such file, it fails, or it has no get_config that returns a ConfigDict.
    """
    if not Path(path).is_file():
        raise UserError(f"there is no config file {path}; see configs/ for what there is")
    try:
        with _siblings_importable(Path(path)):
            names = runpy.run_path(str(path))
            config = names["get_config"]() if "get_config" in names else None
    except SystemExit as error:
        raise UserError(f"config file {path} fails: it calls exit()") from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"config file {path} fails: {reason}") from error
    if "get_config" not in names:
        raise UserError(f"config file {path} defines no get_config()")
    if not isinstance(config, ConfigDict):
        kind = type(config).__name__
        raise UserError(f"config file {path} fails: get_config() returns {kind}, not a ConfigDict")
    return config.to_dict()


@contextlib.contextmanager
def _siblings_importable(path: Path) -> Iterator[None]:
    """Puts the file's folder on the import path; afterwards forgets what was imported from it.

    Otherwise a notebook would not see that a sibling was edited, and two folders with files of one
    name would get the first one's.
    """
    folder = path.resolve().parent
    before = set(sys.modules)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            source = getattr(sys.modules[name], "__file__", None)
            if source and Path(source).parent == folder:
                del sys.modules[name]

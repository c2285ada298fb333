"""Running a user's file of Python: a config file with its `get_config()`, a sweep file likewise."""

import contextlib
import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.buckets.addresses import is_address
from transformer_jax.buckets.copies import fetched
from transformer_jax.errors import UserError

_EXAMPLES = {"config": "configs/", "sweep": "experiments/sweeps/"}


def run_config_file(path: str | Path) -> dict[Any, Any]:
    """What `get_config()` of a file returns, as nested dicts.

    Raises:
      UserError: no such file, it fails, or it has no get_config that returns a ConfigDict.
    """
    return run_file(path, "config", "get_config", ConfigDict).to_dict()


def run_file[Result](path: str | Path, kind: str, function: str, result: type[Result]) -> Result:
    """What `function()` of a user's Python file returns.

    The file may import its siblings by name (`from wmt14_en_de_base import get_config`), whatever
    the current directory is: like a script's, its folder stands first on the import path.

    Args:
      path: of the file, or its address: it is brought here with the others of its folder.
      kind: what the file holds, for messages: "config" or "sweep".
      function: its name, without arguments.
      result: the type that it must return.

    Raises:
      UserError: no such file, it fails or calls exit(), or it has no such function of such a type.
    """
    given, path = path, _here(path)
    if not path.is_file():
        raise UserError(f"there is no {kind} file {given}; see {_EXAMPLES[kind]} for what there is")
    with failing_as(f"{kind} file {given} fails"), _siblings_importable(path):
        names = runpy.run_path(str(path))
        found = names[function]() if function in names else None
    if function not in names:
        raise UserError(f"{kind} file {given} defines no {function}()")
    if not isinstance(found, result):
        returned, wanted = type(found).__name__, result.__name__
        raise UserError(
            f"{kind} file {given} fails: {function}() returns {returned}, not a {wanted}"
        )
    return found


def _here(path: str | Path) -> Path:
    if not is_address(path):
        return Path(path)
    folder, _, name = str(path).rpartition("/")
    return fetched(folder, lambda one: "/" not in one and one.endswith(".py")) / name


@contextlib.contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Around a user's code: whatever it raises, exit() too, becomes a UserError of one line."""
    try:
        yield
    except SystemExit as error:
        raise UserError(f"{what}: it calls exit()") from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{what}: {reason}") from error


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

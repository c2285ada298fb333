# SPDX-License-Identifier: Apache-2.0
"""The user's Python files: modules that register components; configs, sweeps and claims.

Modules add positions, models, tasks, data sets and so on to the registries (`runs.settings`). A run
stores the names of the modules that it needs in its `modules.json`, without their code: the user
keeps the code and gives it again, by `--modules` or `modules=`. Nothing in a workdir is executed.
"""

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import logging
import os
import runpy
import sys
import traceback
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformer_jax.buckets.copies import fetch_folder
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.errors import UserError, user_errors
from transformer_jax.registry import reload_registrations
from transformer_jax.runs.settings import Settings, tables
from transformer_jax.runs.shipped import find_file, suggest_shipped
from transformer_jax.runs.workdir import CHECKPOINTS, CONFIG, MODULES, TOGETHER
from transformer_jax.runtime.files import read_regular, write_atomic
from transformer_jax.suggestions import suggest_file

_warn_once = functools.cache(logging.getLogger(__name__).warning)

Modules = str | Path | Sequence[str | Path]
"""One or several: the path of a Python file, which ends in .py or contains a path separator, or the
dotted name of a module that can be imported."""

_PACKAGE = "transformer_jax"


@dataclass(frozen=True)
class UserModule:
    """A user's module, as `modules.json` records it.

    Attributes:
      name: the name of its file, or its dotted import name.
      sha256: the SHA-256 of its file, in hexadecimal digits.
    """

    name: str
    sha256: str


_loaded: dict[str, UserModule] = {}  # modules of this process, by their names in `sys.modules`


def load_modules(modules: Modules, workdir: str | Path | None = None) -> list[UserModule]:
    """Imports the user's modules, so that the config can name what they register.

    A module whose file has changed since it was loaded is loaded again; its new components replace
    the old ones. If a module fails, none of its components stays registered.

    Args:
      modules: one or several; none of their files may be in the workdir.
      workdir: the workdir of the run that needs them. For an address nothing is checked; this is
        called again with the local copy.

    Returns:
      The modules given, and those that the run in the workdir needs.

    Raises:
      UserError: there is no such module, it fails or calls exit(), a name that it registers is
        taken, or the run in the workdir needs a module that is not loaded.
    """
    modules = [modules] if isinstance(modules, str | Path) else modules
    workdir = Path(workdir) if workdir else None
    loaded = [_load(module, workdir) for module in modules]
    for folder in (workdir, workdir / TOGETHER) if workdir else ():
        loaded += _needed_modules(folder)
    return list(dict.fromkeys(loaded))


def record_modules(workdir: Path, settings: Settings, given: Iterable[UserModule]) -> None:
    """Records the modules that a run needs: those given, and those whose components it names."""
    of_components = map(_user_module, user_components(settings).values())
    needed = dict.fromkeys([*given, *filter(None, of_components)])
    path = workdir / MODULES
    if needed:
        write_atomic(path, json.dumps([asdict(module) for module in needed], indent=2) + "\n")
    else:
        path.unlink(missing_ok=True)  # left by a start that failed, with any config


def _load(module: str | Path, workdir: Path | None) -> UserModule:
    text = str(module)
    is_file = isinstance(module, Path) or text.endswith(".py") or os.sep in text
    if is_file:
        path = find_file(os.path.expanduser(text), "module").resolve()
        _check_outside(path, workdir)
        label = path.name
        # A unique name: files of several folders may have the same name.
        name = f"{path.stem}_{_digest(os.fsencode(path))[:8]}"
    else:
        path = _find(text, workdir)
        label = name = text
    try:
        source = path.read_bytes()
    except OSError as error:
        hint = "" if path.exists() else suggest_file(path)
        raise UserError(f"modules: cannot read {path}: {error.strerror}{hint}") from error
    user_module = UserModule(label, _digest(source))
    if _loaded.get(name) == user_module:
        return user_module
    with _executing(label, path, replaces=name):
        if is_file:
            python_module = sys.modules[name] = types.ModuleType(name)
            python_module.__file__ = str(path)
            # Not imported: that might take an earlier version from __pycache__.
            with _siblings_importable(path):
                exec(compile(source, path, "exec"), vars(python_module))
        elif name in sys.modules:
            importlib.reload(sys.modules[name])
        else:
            importlib.import_module(name)
    _loaded[name] = user_module
    return user_module


def _find(name: str, workdir: Path | None) -> Path:
    """The file of an importable module; the packages around it are executed."""
    importlib.invalidate_caches()  # the file may be new
    spec = None
    # Each package first ("a", "a.b", "a.b.c"): finding a module executes those around it.
    for prefix in itertools.accumulate(name.split("."), "{}.{}".format):
        with _executing(prefix, Path(prefix)):
            spec = importlib.util.find_spec(prefix)
        if spec is None:
            break
        places = [spec.origin] if spec.has_location else spec.submodule_search_locations
        for place in filter(None, places or ()):
            _check_outside(Path(place), workdir)
    if spec is None or spec.origin is None or not spec.has_location:
        raise UserError(
            f"modules: {name!r} is no module that can be imported; give the path of a .py file, or "
            "set PYTHONPATH to the folder that holds it"
        )
    return Path(spec.origin)


def _check_outside(path: Path, workdir: Path | None) -> None:
    if workdir and path.resolve().is_relative_to(workdir.resolve()):
        raise UserError(
            f"modules: {path} is in the workdir, and nothing there is executed; keep it elsewhere"
        )


@contextlib.contextmanager
def _executing(name: str, path: Path, replaces: str = "") -> Iterator[None]:
    """Runs a user's code; if it fails, restores registries and modules and raises a UserError.

    Its components replace those that the module `replaces` has registered.
    """
    former = sys.modules.get(replaces)
    try:
        # Its output is not a result.
        with reload_registrations(replaces), contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        sys.modules.pop(replaces, None)
        if former is not None:
            sys.modules[replaces] = former
        line = line_in_file(error, path)
        place = name if line is None else f"{name}, line {line}"
        raise UserError(f"modules: {place}: {describe_error(error)}") from error


def line_in_file(error: BaseException, path: Path) -> int | None:
    """The number of the last line of a file that led to an error; None if none did."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return lines[-1] if lines else None


def describe_module_error(error: BaseException) -> str | None:
    """An error that was raised in or below code of a loaded module, in one line with file and line.

    Returns None if no such code led to the error.
    """
    files = {getattr(sys.modules.get(name), "__file__", None) for name in _loaded}
    folders = {os.path.dirname(file) for file in files if file}  # modules import their neighbours
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if os.path.dirname(frame.filename) in folders:
            return f"{frame.filename}, line {frame.lineno}: {describe_error(error)}"
    return None


def is_modules_fault(error: BaseException) -> bool:
    """Returns True if an error, or one that led to it, was raised by code of a loaded module; or
    below it, unless the package refuses something there (UserError, ValueError)."""
    files = {getattr(sys.modules.get(name), "__file__", None) for name in _loaded}
    link: BaseException | None = error
    while link is not None:
        frames = [frame.filename for frame in traceback.extract_tb(link.__traceback__)]
        blamed = frames[-1:] if isinstance(link, UserError | ValueError) else frames
        if files.intersection(blamed):
            return True
        link = link.__cause__
    return False


def describe_error(error: BaseException) -> str:
    """An error of a user's code in one line."""
    if isinstance(error, SystemExit):
        return "it calls exit()"
    if isinstance(error, UserError):
        return str(error)
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {message}"


def _needed_modules(workdir: Path) -> list[UserModule]:
    """The loaded modules that the run in a workdir needs; UserError if one is not loaded."""
    needed = []
    missing = []
    for recorded in recorded_modules(workdir):
        candidates = [*_loaded.values(), _user_module(recorded.name)]
        same_name = [module for module in candidates if module and module.name == recorded.name]
        if not same_name:
            missing.append(recorded.name)
        elif recorded in same_name:
            needed.append(recorded)
        else:
            _warn_once("%s has changed since the run in %s was trained", recorded.name, workdir)
            needed.append(same_name[-1])
    if missing:
        paths = [f"PATH/TO/{name}" if name.endswith(".py") else name for name in missing]
        raise UserError(
            f"the run in {workdir} needs {', '.join(missing)}, whose code is not in it: give "
            f"--modules={','.join(paths)}, or modules= in a notebook"
        )
    return needed


def recorded_modules(workdir: Path) -> list[UserModule]:
    """Reads the record of `record_modules`; empty if the run has no checkpoint yet."""
    path = workdir / MODULES
    if not os.path.lexists(path) or not step_folders(workdir / CHECKPOINTS):
        return []
    damages = (OSError, ValueError, TypeError, RecursionError)
    with user_errors(f"{path} cannot be read", kinds=damages):
        modules = [UserModule(**fields) for fields in json.loads(read_regular(path))]
        if not all(isinstance(text, str) for module in modules for text in vars(module).values()):
            raise TypeError("a name or a digest is no text")
        return modules


def user_components(settings: Settings) -> dict[tuple[str, str], str]:
    """The components named in a config that are not of this package: (field, name) -> the module
    that registered it, "__main__" for a notebook's cells."""
    modules = tables().user_modules
    chosen = [(field, name) for field, names in settings.resolved.names.items() for name in names]
    return {choice: modules[choice] for choice in chosen if choice in modules}


def location(module: str) -> str:
    """Returns the name of a module of this process in `--modules`: its file, or its import name."""
    loaded = _loaded.get(module)
    is_file = loaded is not None and loaded.name.endswith(".py")
    return str(sys.modules[module].__file__) if is_file else module


def _user_module(module: str) -> UserModule | None:
    """Describes a module of this process; None for a notebook's cells and this package."""
    if module in _loaded:
        return _loaded[module]
    path = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or path is None or module.startswith(f"{_PACKAGE}."):
        return None
    return UserModule(module, _digest(Path(path).read_bytes()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def run_file[Result](
    path: str | Path, kind: str, function: str, result: type[Result], **arguments: Any
) -> Result:
    """Runs a user's Python file; returns the result of its `function()`.

    The file may import its siblings by name (`from wmt14_en_de_base import get_config`) from any
    current directory: its folder is first on the import path, as for a script.

    Args:
      path: the file, the name of a shipped one, or an address; all Python files of its folder are
        fetched.
      kind: "config", "sweep" or "claim", for messages.
      function: name of the function.
      result: the type that it must return.
      **arguments: of the function, if it has parameters of these names.

    Raises:
      UserError: there is no such file, it fails or calls exit(), or it has no such function of this
        type.
    """
    folder, name = os.path.split(path)
    beside = fetch_folder(folder, lambda file: "/" not in file and file.endswith(".py"))
    local = find_file(beside / name, kind)
    require_file(local, kind, path)
    with failing_as(f"{kind} file {path} fails", local), _siblings_importable(local):
        namespace = runpy.run_path(str(local))
        if function in namespace:
            parameters = inspect.signature(namespace[function]).parameters
            taken = {name: value for name, value in arguments.items() if name in parameters}
            returned = namespace[function](**taken)
    if function not in namespace:
        raise UserError(f"{kind} file {path} defines no {function}()")
    if not isinstance(returned, result):
        raise UserError(
            f"{kind} file {path} fails: {function}() returns {type(returned).__name__}, not a "
            f"{result.__name__}"
        )
    return returned


def require_file(path: Path, kind: str, name: str | Path) -> None:
    """Raises UserError if a path, `name` to the user, is no file; it suggests a similar one."""
    if path.is_file():
        return
    if (path / CONFIG).is_file():
        raise UserError(f"{name} is a folder; did you mean {path / CONFIG}?")
    raise UserError(f"there is no {kind} file {name}{suggest_shipped(path, kind)}")


@contextlib.contextmanager
def failing_as(what: str, path: Path | None = None) -> Iterator[None]:
    """Turns any error of a user's code, exit() too, into a UserError of one line.

    It begins with `what`, and ends with the line of the file `path` that led to the error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        line = line_in_file(error, path) if path else None
        place = "" if line is None else f" (line {line})"
        raise UserError(f"{what}: {describe_error(error)}{place}") from error


@contextlib.contextmanager
def _siblings_importable(path: Path) -> Iterator[None]:
    """Puts the file's folder on the import path; afterwards forgets what was imported from it.

    Otherwise a notebook would not notice that a sibling was edited, and two folders with files of
    the same name would both get the first one's.
    """
    folder = path.resolve().parent
    loaded = set(sys.modules)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - loaded:
            source = getattr(sys.modules[name], "__file__", None)
            if source and Path(source).parent == folder:
                del sys.modules[name]

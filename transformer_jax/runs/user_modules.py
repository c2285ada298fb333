"""Components of the user's own: files and modules outside the package that register them.

Their lines add positions, models, tasks, data sets and so on to the registries (`runs.settings`). A
run names the modules that it needs in its `modules.json`, without their code: the user keeps that
and gives it again, by `--modules` or `modules=`. Nothing that lies in a workdir is executed.
"""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import itertools
import json
import logging
import os
import sys
import traceback
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ml_collections import ConfigDict

from transformer_jax.buckets.bucket import is_address
from transformer_jax.checkpoints.step_folder import step_folders
from transformer_jax.errors import UserError
from transformer_jax.registry import reload_registrations
from transformer_jax.runs.settings import CHOICES
from transformer_jax.runs.workdir import CHECKPOINTS, MODULES, TOGETHER
from transformer_jax.runtime.files import SETTINGS_BYTES, read_regular, write_atomic

_warn_once = functools.cache(logging.getLogger(__name__).warning)

Modules = str | Path | Sequence[str | Path]
"""One or several: the path of a Python file, ending in .py or holding a path separator, or the
dotted name of a module that can be imported."""


@dataclass(frozen=True)
class UserModule:
    """A module as a run names it.

    Attributes:
      name: the name of its file, or the dotted name by which it is imported.
      sha256: of the file's content, in hexadecimal digits.
    """

    name: str
    sha256: str


_loaded: dict[str, UserModule] = {}  # by this process, by its name in `sys.modules`


def load_modules(modules: Modules, workdir: str | Path | None = None) -> list[UserModule]:
    """Imports the user's modules, so that the config may name what they register.

    A module whose file has changed since it was loaded is loaded again: what it registers replaces
    what it registered before. Where it fails, nothing of it stays registered.

    Args:
      modules: one or several; none of their files may lie in the workdir.
      workdir: of the run that they are for. (Who brings one from an address asks again.)

    Returns:
      The modules given, and those that the run in the workdir names.

    Raises:
      UserError: there is no such module, it fails or calls exit(), a name that it registers is
        taken, or the run in the workdir needs a module that is not loaded.
    """
    modules = [modules] if isinstance(modules, str | Path) else modules
    workdir = Path(workdir) if workdir and not is_address(workdir) else None
    named = [_load(one, workdir) for one in modules]
    for folder in (workdir, workdir / TOGETHER) if workdir else ():
        named += _needed(folder)
    return list(dict.fromkeys(named))


def record_modules(workdir: Path, config: ConfigDict, named: Iterable[UserModule]) -> None:
    """Writes which modules a run needs: those named, and those whose components it chooses."""
    needed = dict.fromkeys([*named, *_chosen(config)])
    path = workdir / MODULES
    if needed:
        write_atomic(path, json.dumps([asdict(one) for one in needed], indent=2) + "\n")
    else:
        path.unlink(missing_ok=True)  # of a start that failed, with any config


def _load(given: str | Path, workdir: Path | None) -> UserModule:
    text = str(given)
    if isinstance(given, Path) or text.endswith(".py") or os.sep in text:
        return _load_file(Path(os.path.expanduser(text)).resolve(), workdir)
    return _load_importable(text, workdir)


def _load_file(path: Path, workdir: Path | None) -> UserModule:
    _check_outside(path, workdir)
    # A name of its own: files of one name may come from several folders.
    name = f"{path.stem}_{_digest(os.fsencode(path))[:8]}"
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"modules: cannot read {path}: {error.strerror}") from error
    described = UserModule(path.name, _digest(source))
    if _loaded.get(name) != described:
        with _executing(path.name, path, replaces=name):
            module = sys.modules[name] = types.ModuleType(name)
            module.__file__ = str(path)
            # Not by an import, which may take an earlier version from __pycache__.
            exec(compile(source, path, "exec"), vars(module))
        _loaded[name] = described
    return described


def _load_importable(name: str, workdir: Path | None) -> UserModule:
    path = _find(name, workdir)
    described = UserModule(name, _digest(path.read_bytes()))
    if _loaded.get(name) != described:
        with _executing(name, path, replaces=name):
            if name in sys.modules:
                importlib.reload(sys.modules[name])
            else:
                importlib.import_module(name)
        _loaded[name] = described
    return described


def _find(name: str, workdir: Path | None) -> Path:
    """The file of an importable module; the packages that it lies in are executed."""
    importlib.invalidate_caches()  # the file may be new
    spec = None
    for whole in itertools.accumulate(name.split("."), "{}.{}".format):
        with _executing(whole, Path(whole)):
            spec = importlib.util.find_spec(whole)
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
            f"modules: {path} lies in the workdir, of which nothing is executed; keep it elsewhere"
        )


@contextlib.contextmanager
def _executing(name: str, path: Path, replaces: str = "") -> Iterator[None]:
    """Around a user's code, which replaces what the module `replaces` has registered; where it
    fails, a UserError, and registries and modules as they were before."""
    before = sys.modules.get(replaces)
    try:
        # What it prints is no result.
        with reload_registrations(replaces), contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        sys.modules.pop(replaces, None)
        if before is not None:
            sys.modules[replaces] = before
        raise UserError(f"modules: {name}{_line(error, path)}: {_reason(error)}") from error


def _line(error: BaseException, path: Path) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines else ""


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "it calls exit(); a module of components only registers them"
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return message if isinstance(error, UserError) else f"{type(error).__name__}: {message}"


def _needed(workdir: Path) -> list[UserModule]:
    """The modules that the run in a workdir names, as they are loaded; UserError for the others."""
    found, missing = [], []
    for recorded in _recorded(workdir):
        known = _known(recorded.name)
        if not known:
            missing.append(recorded.name)
        elif recorded in known:
            found.append(recorded)
        else:
            _warn_once("%s has changed since the run in %s was trained", recorded.name, workdir)
            found.append(known[-1])
    if missing:
        paths = [f"PATH/TO/{name}" if name.endswith(".py") else name for name in missing]
        raise UserError(
            f"the run in {workdir} needs {', '.join(missing)}, whose code it does not hold: give "
            f"--modules={','.join(paths)}, or modules= in a notebook"
        )
    return found


def _recorded(workdir: Path) -> list[UserModule]:
    """What `record_modules` wrote; nothing of a start that came to no checkpoint."""
    path = workdir / MODULES
    if not os.path.lexists(path) or not step_folders(workdir / CHECKPOINTS):
        return []
    try:
        modules = [UserModule(**one) for one in json.loads(read_regular(path, SETTINGS_BYTES))]
        if not all(str.isprintable(one.name) for one in modules):
            raise ValueError("a name in it is no plain text")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return modules


def _known(name: str) -> list[UserModule]:
    """The modules of this process that a run may mean by a name."""
    candidates = [*_loaded.values(), _described(name)]
    return [one for one in candidates if one and one.name == name]


def _chosen(config: ConfigDict) -> list[UserModule]:
    """The modules outside the package that registered what a config chooses."""
    registered_in: list[str | None] = []
    for field, registry in CHOICES.items():
        section, _, key = field.partition(".")
        registered_in += map(registry.module_of, (config[section][key] or "").split(","))
    return [one for one in map(_described, filter(None, registered_in)) if one]


def _described(module: str) -> UserModule | None:
    """A module of this process; None for a notebook's cell and the package's own."""
    if module in _loaded:
        return _loaded[module]
    path = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or path is None or module.startswith("transformer_jax."):
        return None
    return UserModule(module, _digest(Path(path).read_bytes()))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

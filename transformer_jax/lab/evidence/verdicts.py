# SPDX-License-Identifier: Apache-2.0
"""Verdicts on claims: the file, its text, and whether it is out of date.

A verdict names by digests all that it depends on: the claim, the code, and each row's config and
data. `check_verdict` computes them again.
"""

import ast
import functools
import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax.errors import UserError
from transformer_jax.runs.outside import open_data
from transformer_jax.runs.provenance import data_provenance
from transformer_jax.runs.settings import Settings, chosen_fields
from transformer_jax.runs.shipped import shipped_files, shipped_modules
from transformer_jax.runs.user_modules import Modules, UserModule, load_modules
from transformer_jax.runtime.files import parse_json, read_regular
from transformer_jax.scoring.sequential import FAILS, HOLDS, UNDECIDED

PLACES = ("data.dir", "data.cache_dir", "data.num_workers")
"""Config fields that say where data are read and how, not which."""

_DIGITS = 32  # of a SHA-256
_MODULE = "module "
_PART = "code of "
_NO_RESULTS = (
    *("buckets", "cli", "examples", "logs", "tools"),
    *("lab/analysis/pages", "lab/analysis/walk", "lab/evidence", "lab/pictures", "lab/plan"),
    *("lab/sweeps", "lab/verification"),
)
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_FIELDS = {
    **{"name": str, "statement": str, "metric": str, "test": str, "asked": dict, "digests": dict},
    **{"values": dict, "interval": list, "looks": list, "seeds": int},
    **{"configs": dict | None},  # earlier versions had digests of them
    **{"smallest": int | float, "error_rate": int | float, "difference": int | float | None},
}
"""Fields of a verdict that are read, and their types."""


class Freshness(NamedTuple):
    """Result of `check_verdict`.

    Attributes:
      changed: parts that differ from those of the verdict.
      unchecked: why configs or data could not be compared; empty if all were.
    """

    changed: list[str]
    unchecked: str

    def __str__(self) -> str:
        code = [name.removeprefix(_PART) for name in self.changed if name.startswith(_PART)]
        parts = [name for name in self.changed if not name.startswith(_PART)]
        parts += [f"code ({', '.join(code)})"] * bool(code)
        state = f"out of date: {', '.join(parts)} changed" if parts else "up to date"
        return state + (f"; not all was checked: {self.unchecked}" if self.unchecked else "")


def read_verdict(path: Path) -> dict[str, Any]:
    """Reads a verdict; UserError if the file is missing or damaged."""
    try:
        verdict = parse_json(read_regular(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no verdict: {error}") from error
    if not isinstance(verdict, dict) or verdict.get("verdict") not in (HOLDS, FAILS, UNDECIDED):
        raise UserError(f"{path} is no verdict: it holds no object with a verdict")
    for name, kind in _FIELDS.items():
        if not isinstance(verdict.get(name), kind):
            raise UserError(f"{path} is no verdict: {name} is missing or of another type")
    if not isinstance(verdict["asked"].get("overrides"), dict):
        raise UserError(f"{path} is no verdict: asked has no overrides")
    if not all(isinstance(fields, dict) for fields in (verdict.get("configs") or {}).values()):
        raise UserError(f"{path} is no verdict: a config has no fields")
    return verdict


def recorded_verdicts() -> list[Path]:
    """Files of the verdicts on shipped claims (experiments/results/claims of a checkout).

    Raises:
      UserError: there are none.
    """
    folders = {path.resolve().parents[1] for path in shipped_files("claim").values()}
    paths = [path for folder in folders for path in folder.glob("results/claims/*.json")]
    if not paths:
        raise UserError("there are no recorded verdicts here; name the files of verdicts")
    return sorted(paths)


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """A verdict in a few lines."""
    low, high = verdict["interval"]
    lines = [
        f"{verdict['verdict'].upper()}: {verdict['statement']}",
        f"  {verdict['metric']}: difference {_shown(verdict['difference'])} "
        f"[{_shown(low)}, {_shown(high)}], smallest of interest {verdict['smallest']:g}",
        f"  {verdict['seeds']} seeds of each, {verdict['test']}, error rate "
        f"{verdict['error_rate']:g} over looks at {', '.join(map(str, verdict['looks']))} seeds",
    ]
    for name, values in verdict["values"].items():
        lines.append(f"  {name}: {', '.join(map(_shown, values))}")
    return "\n".join(lines)


def check_verdict(
    verdict: Mapping[str, Any],
    claim: str,
    configs: Callable[[], Mapping[str, Settings]],
    modules: Modules = (),
) -> Freshness:
    """Compares what a verdict depends on with what is here now.

    Args:
      verdict: as `read_verdict` returns it.
      claim: digest of the claim.
      configs: returns the configs of the rows now; none for an experiment.
      modules: the user's own; shipped ones that the verdict names are added.
    """
    paths = [modules] if isinstance(modules, str | Path) else [*modules]
    shipped = {f"{_MODULE}{name}": path for name, path in shipped_modules().items()}
    paths += [shipped[name] for name in verdict["digests"] if name in shipped]
    saved = {**verdict["digests"], "claim": verdict["asked"].get("claim")}
    now = {"claim": claim, **code_digests()}
    changed_fields: list[str] = []
    unchecked = ""
    try:
        now |= _module_digests(load_modules(paths))
        rows = configs()
        changed_fields = _changed_fields(verdict.get("configs"), stated_configs(rows))
        data = _data_digests(rows)
        now |= {name: digest for name, digest in data.items() if name in saved}
        lacking = dict.fromkeys(_kind(name) for name in data if name not in saved)
        if lacking:
            unchecked = f"the verdict, of an earlier version, has no digest of {', '.join(lacking)}"
    except UserError as error:
        unchecked = str(error)
    # Code that is new or gone, too; data and configs that are not here count as unchecked.
    compared = [*now, *(name for name in saved if name.startswith(_PART) and name not in now)]
    differing = [_kind(name) for name in compared if now.get(name) != saved.get(name)]
    return Freshness([*dict.fromkeys([*differing, *changed_fields])], unchecked)


def _changed_fields(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """The part "config (FIELD, FIELD)" of rows whose configs differ; empty if none do.

    Raises:
      UserError: the verdict has no configs.
    """
    if before is None and now:
        raise UserError("the verdict, of an earlier version, has no configs")
    missing = object()  # None is a value
    changed = set()
    for row, fields in now.items():
        fields_before = (before or {}).get(row, {})
        for field in fields | fields_before:
            if fields.get(field, missing) != fields_before.get(field, missing):
                changed.add(field)
    return [f"config ({', '.join(sorted(changed))})"] if changed else []


def _kind(name: str) -> str:
    """A digest's name without the row; in full if it is of a part of the code."""
    return name if name.startswith(_PART) else name.partition(" of ")[0]


@functools.cache
def code_digests() -> Mapping[str, str]:
    """Digests of the code that results depend on, {"code of PART": digest}.

    A part is a module or a package directly in `transformer_jax`. Docstrings and comments are left
    out, and so are the parts that only start, copy, show or check runs (`_NO_RESULTS`: the shell,
    sweeps, buckets, pages, pictures, logs, tools, evidence).
    """
    folder = Path(__file__).parents[2]
    parts: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(tuple(f"{part}/" for part in _NO_RESULTS)):
            part = name.partition("/")[0].removesuffix(".py")
            source = without_words(path.read_text(encoding="utf-8"))
            parts.setdefault(part, hashlib.sha256()).update(f"{name}\n{source}".encode())
    return {f"{_PART}{part}": f"SHA-256 {h.hexdigest()[:_DIGITS]}" for part, h in parts.items()}


def without_words(source: str) -> str:
    """Python source without docstrings, comments and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def stated_configs(configs: Mapping[str, Settings]) -> dict[str, dict[str, Any]]:
    """The fields that each row's config sets, {"section.field": value}, without places of data.

    Fields with their default are left out, so that a new field changes no verdict. A default that
    changes is a change of the code.
    """
    stated = {}
    for row, settings in configs.items():
        chosen = chosen_fields(settings.values)
        stated[row] = {name: value for name, value in chosen.items() if name not in PLACES}
    return json.loads(json.dumps(stated))  # a verdict's file has lists for tuples


def input_digests(configs: Mapping[str, Settings], modules: Modules = ()) -> dict[str, str]:
    """Digests of the user's modules, and of each row's training and validation data.

    Raises:
      UserError: a module or the data are not here.
    """
    return _module_digests(load_modules(modules)) | _data_digests(configs)


def _module_digests(modules: Iterable[UserModule]) -> dict[str, str]:
    return {f"{_MODULE}{module.name}": f"SHA-256 {module.sha256[:_DIGITS]}" for module in modules}


def _data_digests(configs: Mapping[str, Settings]) -> dict[str, str]:
    """Digests of the training and validation data of each row; equal data are read once."""
    digests: dict[str, str] = {}
    read: dict[str, dict[str, str]] = {}
    for row, settings in configs.items():
        data = settings.data
        if repr(data) not in read:
            read[repr(data)] = {
                **data_provenance("training data", open_data(settings, "train")),
                **data_provenance("validation data", open_data(settings, "valid")),
            }
        digests |= {f"{split} of {row}": digest for split, digest in read[repr(data)].items()}
    return digests


def describe_machine() -> dict[str, str]:
    """Kind of machine; the bits of the values depend on it."""
    return {
        "device": jax.devices()[0].device_kind,
        "processor": platform.processor() or platform.machine(),
        "system": platform.system(),
        "jax": jax.__version__,
    }


def digest_of(value: Any) -> str:
    """SHA-256 of a value of JSON."""
    text = json.dumps(value, sort_keys=True, default=str)
    return f"SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"

"""What a process states about a command before it joins the job: all processes must state the same.

`FREE` and the paths of files may differ; of files whose content matters, the content is stated.
"""

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.runs import provenance
from transformer_jax.runs.modules import UserModule

FREE = re.compile(r"data\.dir|logging\..*")
"""Fields of the config that may differ between the processes of a job."""

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "grain", "orbax-checkpoint")
_OF_ONE_MACHINE = re.compile("cache|visible_devices|log|dump|mtls|cross_host|traceback|pprint")
"""Flags of JAX that say nothing about the compiled programs."""


def of_command(
    config: ConfigDict,
    modules: Iterable[UserModule],
    flags: Mapping[str, Any],
    files: Mapping[str, str | None],
) -> dict[str, str]:
    """The statement of one command.

    Args:
      config: of the run.
      modules: the user's own.
      flags: of the command line, by their names.
      files: likewise, of which the content counts; None where the flag is not given.

    Raises:
      UserError: a file cannot be read.
    """
    stated = {name: repr(value) for name, value in _fields(config).items()}
    stated = {name: text for name, text in stated.items() if not FREE.fullmatch(name)}
    stated |= {f"--{name}": repr(value) for name, value in flags.items()}
    stated |= {f"--{name}": _digest(path) for name, path in files.items() if path is not None}
    stated |= {f"module {one.name}": f"SHA-256 {one.sha256[:32]}" for one in modules}
    return stated | {"code": provenance.code()} | _libraries()


def _fields(config: ConfigDict) -> dict[str, Any]:
    """{"section.field": value}"""
    found: dict[str, Any] = {}
    for section, values in config.to_dict().items():
        if isinstance(values, Mapping):
            found |= {f"{section}.{field}": value for field, value in values.items()}
        else:
            found[section] = values
    return found


def _libraries() -> dict[str, str]:
    """Versions and flags of what computes."""
    found = {name: metadata.version(name) for name in _LIBRARIES}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    found["XLA_FLAGS"] = " ".join(
        sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if "dump" not in flag)
    )
    flags = jax.config.values.items()
    return found | {name: str(value) for name, value in flags if not _OF_ONE_MACHINE.search(name)}


def _digest(path: str) -> str:
    if Path(path).exists() and not Path(path).is_file():
        return "no regular file"  # a pipe, say, which can be read once
    try:
        with Path(path).open("rb") as file:
            return f"a file of SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()[:32]}"
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error

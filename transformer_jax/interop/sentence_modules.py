# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the files with which sentence-transformers makes one vector of a text.

modules.json lists the model, the pooling of its token vectors, and whether the result is scaled to
length 1. Any other module is named in a warning, and then the run has no pooling.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.config_json import read_json
from transformer_jax.ranges import short_repr
from transformer_jax.runtime.files import is_safe_name, path_of_published, read_regular
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tokenization.transformers_export import json_file

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
POOLING = "1_Pooling/config.json"
_LIMITS = {
    "sentence_bert_config.json": "max_seq_length",
    "tokenizer_config.json": "model_max_length",
}
"""File -> its key with the longest text, in tokens."""

_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
"""Key of older files after `pooling_mode_` -> value of `task.pooling`."""


@dataclasses.dataclass(frozen=True)
class SentenceModules:
    """Pooling and other settings of a model of sentence-transformers.

    Attributes:
      fields: "section.field" -> value.
      warnings: what is not imported, one line each.
    """

    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_sentence_modules(directory: Path) -> SentenceModules:
    """The modules of a directory; nothing if it has no modules.json.

    Raises:
      UserError: a file is damaged.
    """
    path = directory / MODULES
    if not path.exists():
        return SentenceModules()
    modules = _read_modules(path)
    kinds = [kind for kind, _ in modules]
    fields: dict[str, Any] = {}
    for name, key in _LIMITS.items():
        content = read_json(directory / name) if (directory / name).exists() else {}
        if content.get("do_lower_case") and name.startswith("sentence"):
            return _not_imported(f"{name}: do_lower_case is True")
        limit = content.get(key)
        if type(limit) is int and 0 < limit < 2**20:  # some tokenizers have 10^30 for no limit
            fields["data.max_length"] = min(limit, fields.get("data.max_length", limit))
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return _not_imported(f"{MODULES}: the modules are {short_repr(kinds)}", fields)
    folder = dict(modules)["Pooling"]
    if not is_safe_name(folder):
        raise UserError(f"{path}: {folder!r} is not the name of a file below its folder")
    keys = read_json(directory / folder / "config.json", directory)
    pooling = _pooling(keys)
    if pooling is None:
        return _not_imported(f"{folder}/config.json: {short_repr(keys)}", fields)
    fields |= {"task.pooling": pooling, "task.normalize": kinds[-1] == "Normalize"}
    settings = read_json(directory / SETTINGS) if (directory / SETTINGS).exists() else {}
    warnings = []
    if settings.get("default_prompt_name"):
        warnings.append(f"{SETTINGS}: default_prompt_name is set; write the prompt into each line")
    return SentenceModules(fields, tuple(warnings))


def sentence_files(task: TaskConfig, width: int, length: int) -> dict[str, bytes]:
    """The files for a run whose vectors have this width, and texts this length.

    There are none if it has no pooling.
    """
    if task.pooling is None:
        return {}
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * task.normalize
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    modes = {f"pooling_mode_{key}": name == task.pooling for key, name in _POOLINGS.items()}
    limits = {"max_seq_length": length, "do_lower_case": False}
    files: dict[str, Any] = {
        MODULES: modules,
        POOLING: {"word_embedding_dimension": width, **modes},
        "sentence_bert_config.json": limits,
    }
    return {name: json_file(content) for name, content in files.items()}


def _read_modules(path: Path) -> list[tuple[str, str]]:
    """Class name and folder of each module."""
    try:
        content = json.loads(read_regular(path_of_published(path)))
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in content]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _pooling(keys: Mapping[str, Any]) -> str | None:
    """Value of `task.pooling`; None if there is no equivalent."""
    if not keys.get("include_prompt", True):
        return None
    if "pooling_mode" in keys:
        mode = keys["pooling_mode"]
        return mode if mode in _POOLINGS.values() else None
    used = [key for key, value in keys.items() if key.startswith("pooling_mode_") and value]
    names = [_POOLINGS.get(key.removeprefix("pooling_mode_")) for key in used]
    return names[0] if len(names) == 1 else None


def _not_imported(what: str, fields: Mapping[str, Any] = {}) -> SentenceModules:  # noqa: B006
    reason = "so that sentence vectors of this run would differ; set task.pooling to use it anyway"
    return SentenceModules(fields, (f"{what}; that is not imported, {reason}",))

"""Sets of Hugging Face's library `datasets`: a folder that `save_to_disk` wrote, a folder of data
files, or a set of the hub, which is downloaded where there is a network.

`data.text_field`, `data.label_field` and `data.pair_field` say which columns are read; or
`data.source_language` and `data.target_language`, of a column "translation" or of columns of their
own.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed, RandomAccess
from transformer_jax.data.files.blocks import ENDINGS, open_blocks
from transformer_jax.errors import UserError

_SPLITS = {
    "train": ("train",),
    "valid": ("validation", "valid", "dev"),
    "test": ("test",),
}
"""What a split may be called there."""

Read = Callable[[Any], str]


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split.

    Raises:
      UserError: no set is named, the package is not installed, there is no such set, split or
        column, a column is not of its kind, or the set cannot be had.
    """
    if not config.hf_name:
        raise UserError("data.hf_name is not set: hf_dataset needs a folder or a name of the hub")
    library = _library()
    if config.block_megabytes is not None and split == "train":
        return [open_blocks(config, _files(library, config))]
    rows = Rows(_loaded(library, config, split))
    readers = _readers(config, rows.table.features)
    return [Parsed(rows, partial(_parse, readers=readers))]


@dataclass(frozen=True, repr=False)
class Rows(RandomAccess[Mapping[str, Any]]):
    """The rows of a set, read from where the library has mapped them into memory.

    Attributes:
      table: `datasets.Dataset`.
    """

    table: Any

    def __len__(self) -> int:
        return len(self.table)

    def item(self, index: int) -> Mapping[str, Any]:
        return self.table[index]


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise UserError(
            f"data.name hf_dataset asks for the extra [hf], as in make setup EXTRAS=hf ({error})"
        ) from error


def _loaded(library: Any, config: DataConfig, split: str) -> Any:
    """The rows of a split; errors of the library and of those below it become one line."""
    folder = Path(config.hf_name or "").expanduser()
    try:
        if (folder / "dataset_info.json").exists() or (folder / "dataset_dict.json").exists():
            found = library.load_from_disk(str(folder))
            found = found if isinstance(found, Mapping) else {"train": found}
        else:
            name = str(folder) if folder.is_dir() else config.hf_name
            found = library.load_dataset(name, config.hf_config, cache_dir=config.dir)
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(f"data.hf_name {config.hf_name} cannot be had: {reason}") from error
    for name in _SPLITS[split]:
        if name in found:
            return found[name]
    raise UserError(
        f"data.hf_name {config.hf_name} has no split {_SPLITS[split][0]!r}; it has "
        f"{', '.join(map(str, found))}"
    )


def _files(library: Any, config: DataConfig) -> list[str]:
    """The files of the training split, which are then read in blocks."""
    try:
        builder = library.load_dataset_builder(config.hf_name, config.hf_config)
        files = [str(path) for path in builder.config.data_files["train"]]
        if other := [path for path in files if not path.endswith(ENDINGS)]:
            raise ValueError(f"{other[0]} is none of {', '.join(ENDINGS)}")
        return files
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"data.block_megabytes: the files of data.hf_name {config.hf_name} cannot be found "
            f"({reason}); leave it out: what `save_to_disk` wrote is never read as a whole"
        ) from error


def _readers(config: DataConfig, features: Mapping[str, Any]) -> dict[str, Read]:
    """For each key of an example, what makes its text of a row."""
    languages = {side: getattr(config, f"{side}_language") for side in ("source", "target")}
    if any(languages.values()):
        return {side: _of_language(config, features, side, languages[side]) for side in languages}
    columns = {"text": config.text_field or "text"}
    columns |= {
        key: column
        for key in ("pair", "label")
        if (column := getattr(config, f"{key}_field")) is not None
    }
    return {key: _of_column(config, features, key, column) for key, column in columns.items()}


def _of_language(
    config: DataConfig, features: Mapping[str, Any], side: str, language: str | None
) -> Read:
    if not language:
        raise UserError(f"data.{side}_language is not set: name both languages, or none")
    translation = features.get("translation")
    there = list(getattr(translation, "languages", None) or translation or features)
    if language not in there:
        raise UserError(
            f"data.{side}_language: {config.hf_name} does not have {language!r}; it has "
            f"{', '.join(there)}"
        )
    if translation is None:
        return lambda row: row[language]
    return lambda row: row["translation"][language]


def _of_column(config: DataConfig, features: Mapping[str, Any], key: str, column: str) -> Read:
    field = f"data.{key}_field"
    if column not in features:
        raise UserError(
            f"{field}: {config.hf_name} does not have {column!r}; it has {', '.join(features)}"
        )
    feature = features[column]
    if key == "label" and hasattr(feature, "int2str"):
        return partial(_class_name, feature, config, column)
    if getattr(feature, "dtype", None) not in ("string", "large_string"):
        kind = "a class label or text" if key == "label" else "text"
        raise UserError(f"{field}: {column} of {config.hf_name} is not {kind}")
    return lambda row: row[column]


def _class_name(feature: Any, config: DataConfig, column: str, row: Mapping[str, Any]) -> str:
    if row[column] is None or row[column] < 0:  # so an example is marked whose label is kept back
        raise UserError(
            f"data.hf_name {config.hf_name}: an example has no label in {column}; choose another "
            "split"
        )
    return feature.int2str(int(row[column]))


def _parse(row: Mapping[str, Any], readers: Mapping[str, Read]) -> Example:
    return {key: read(row) for key, read in readers.items()}

# SPDX-License-Identifier: Apache-2.0
"""Sets of Hugging Face's library `datasets`: a folder written by `save_to_disk`, a folder of data
files, or a set on the hub.

`data.text_field`, `data.label_field` and `data.pair_field` name the columns to read. Translations
are read from the columns `data.source_language` and `data.target_language`, or from these keys of a
column "translation".
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, RandomAccess
from transformer_jax.data.files.rows import Rows, select_rows, text_of
from transformer_jax.data.files.text import BLOCK_ENDINGS, open_blocks
from transformer_jax.errors import MissingSplitError, UserError, install_hint, reason_of

_SPLITS = {
    "train": ("train",),
    "valid": ("validation", "valid", "dev"),
    "test": ("test",),
}
"""Split -> its possible names in a set."""

_ROWS_AT_ONCE = 1000

RowToText = Callable[[Any], str]


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split as one corpus; the training split as `TextBlocks` if `config.block_megabytes`
    is set.

    Raises:
      UserError: no set is configured, the package is not installed, the set, split or column does
        not exist, a column has another type, or the set cannot be loaded.
    """
    if not config.hf_name:
        raise UserError("data.hf_name is not set: hf_dataset needs a folder or a name of the hub")
    library = _library()
    if config.block_megabytes is not None and split == "train":
        return [open_blocks(config, _training_files(library, config))]
    table = _load(library, config, split)
    readers = _readers(config, table.features)
    convert = partial(_row_example, readers=readers)
    rows = Rows(HubRows(table), f"data.hf_name {config.hf_name}, split {split}")
    return [select_rows(rows, convert, split, config.on_bad_row)]


@dataclass(frozen=True, repr=False)
class HubRows(RandomAccess[Mapping[str, Any]]):
    """Rows of a set, mapped into memory by the library.

    Attributes:
      table: a `datasets.Dataset`.
    """

    table: Any

    def __len__(self) -> int:
        return len(self.table)

    def item(self, index: int) -> Mapping[str, Any]:
        return self.table[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for batch in self.table.iter(batch_size=_ROWS_AT_ONCE):
            columns = batch.values()
            yield from (dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True))


def _library() -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise UserError(
            f"data.name hf_dataset needs the library datasets ({error}): {install_hint('hf')}"
        ) from error


def _load(library: Any, config: DataConfig, split: str) -> Any:
    """Rows of a split; errors of the library become one line."""
    folder = Path(config.hf_name or "").expanduser()
    try:
        if (folder / "dataset_info.json").exists() or (folder / "dataset_dict.json").exists():
            loaded = library.load_from_disk(str(folder))
            # A set that was saved without splits is training data.
            splits = loaded if isinstance(loaded, Mapping) else {"train": loaded}
        else:
            name = str(folder) if folder.is_dir() else config.hf_name
            splits = library.load_dataset(name, config.hf_config, cache_dir=config.dir)
    except Exception as error:
        raise UserError(
            f"data.hf_name {config.hf_name} cannot be loaded: {reason_of(error)}"
        ) from error
    for name in _SPLITS[split]:
        if name in splits:
            return splits[name]
    raise MissingSplitError(
        f"data.hf_name {config.hf_name} has no split {_SPLITS[split][0]!r}; it has "
        f"{', '.join(map(str, splits))}"
    )


def _training_files(library: Any, config: DataConfig) -> list[str]:
    """Files of the training split, to be read in blocks."""
    try:
        builder = library.load_dataset_builder(config.hf_name, config.hf_config)
        files = [str(path) for path in builder.config.data_files["train"]]
        for path in files:
            if not path.endswith(BLOCK_ENDINGS):
                raise ValueError(f"{path} is none of {', '.join(BLOCK_ENDINGS)}")
        return files
    except Exception as error:
        raise UserError(
            f"data.block_megabytes: the files of data.hf_name {config.hf_name} cannot be found "
            f"({reason_of(error)}); leave it out for sets of `save_to_disk`, which are mapped into "
            "memory"
        ) from error


def _readers(config: DataConfig, features: Mapping[str, Any]) -> dict[str, RowToText]:
    """For each field of an example, the function that gets its text from a row."""
    languages = {side: getattr(config, f"{side}_language") for side in ("source", "target")}
    if any(languages.values()):
        return {
            side: _language_reader(config, features, side, languages[side]) for side in languages
        }
    columns = {"text": config.text_field or "text"}
    for key in ("pair", "label"):
        column = getattr(config, f"{key}_field")
        if column is not None:
            columns[key] = column
    return {key: _column_reader(config, features, key, column) for key, column in columns.items()}


def _language_reader(
    config: DataConfig, features: Mapping[str, Any], side: str, language: str | None
) -> RowToText:
    if not language:
        raise UserError(f"data.{side}_language is not set: set both languages, or none")
    translation = features.get("translation")
    languages = list(getattr(translation, "languages", None) or translation or features)
    if language not in languages:
        raise UserError(
            f"data.{side}_language: {config.hf_name} does not have {language!r}; it has "
            f"{', '.join(languages)}"
        )
    if translation is None:
        return partial(_text, column=language)
    return lambda row: _text(row["translation"] or {}, language)


def _column_reader(
    config: DataConfig, features: Mapping[str, Any], key: str, column: str
) -> RowToText:
    field = f"data.{key}_field"
    if column not in features:
        raise UserError(
            f"{field}: {config.hf_name} does not have {column!r}; it has {', '.join(features)}"
        )
    feature = features[column]
    if key == "label" and hasattr(feature, "int2str"):
        return partial(_class_name, feature, column)
    if getattr(feature, "dtype", None) not in ("string", "large_string"):
        kind = "a class label or text" if key == "label" else "text"
        raise UserError(f"{field}: {column} of {config.hf_name} is not {kind}")
    if key == "label":
        return partial(_label, column=column)
    return partial(_text, column=column)


def _text(row: Mapping[str, Any], column: str) -> str:
    return text_of(row.get(column), f"the column {column!r}")


def _label(row: Mapping[str, Any], column: str) -> str:
    label = _text(row, column)
    if not label.strip():
        raise ValueError(f"no label in {column}; choose another split")
    return label


def _class_name(feature: Any, column: str, row: Mapping[str, Any]) -> str:
    if row[column] is None or row[column] < 0:  # mark of a hidden label
        raise ValueError(f"no label in {column}; choose another split")
    return feature.int2str(int(row[column]))


def _row_example(row: Mapping[str, Any], readers: Mapping[str, RowToText]) -> Example:
    return {key: read(row) for key, read in readers.items()}

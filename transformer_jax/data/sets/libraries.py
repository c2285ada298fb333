# SPDX-License-Identifier: Apache-2.0
"""Sets of Hugging Face's library `datasets`, and of TensorFlow Datasets without TensorFlow.

`hf_dataset`: a folder written by `save_to_disk`, a folder of data files, or a set on the hub. A
translation may be a column of its own, "translation". `tfds`: a builder of TFDS or the user's own;
a set that is not prepared in `data.dir` is downloaded and prepared first (array_record files).

`data.source_language` and `data.target_language` name the columns of translations, in either order;
`data.text_field`, `data.label_field` and `data.pair_field` those of other sets.
"""

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, RandomAccess
from transformer_jax.data.files.rows import Rows, has_ending, select_rows
from transformer_jax.data.files.table import example_of, find_columns, named_columns, pair_columns
from transformer_jax.data.files.text import BLOCK_ENDINGS, open_blocks
from transformer_jax.errors import MissingSplitError, UserError, install_hint, reason_of

_HF_SPLITS = {"train": ("train",), "valid": ("validation", "valid", "dev"), "test": ("test",)}
"""Split -> its possible names in a set."""
_TFDS_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_PAIR_CONFIGS = ("{0}-{1}", "{1}-{0}", "{0}_to_{1}", "{1}_to_{0}", "{0}{1}", "{1}{0}")
"""Names that builders give to their config for a pair of languages."""
_ROWS_AT_ONCE = 1000
_TRANSLATION = "translation"


def open_hf(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `hf_dataset` as one corpus; the training split as `TextBlocks` if
    `config.block_megabytes` is set.

    Raises:
      UserError: no set is configured, the package is not installed, the set, split or column does
        not exist, a column has another type, or the set cannot be loaded.
    """
    name = _required(config, "hf_name")
    library = _library("datasets", "hf_dataset", "hf")
    if config.block_megabytes is not None and split == "train":
        return [open_blocks(config, _training_files(library, config))]
    table = _load(library, config, split)
    features = table.features
    parent = _TRANSLATION if config.source_language and _TRANSLATION in features else None
    if parent:
        features = features[parent]
        features = dict.fromkeys(getattr(features, "languages", features))
    rows_name = f"data.hf_name {name}, split {split}"
    columns = find_columns(rows_name, list(features), _named(config))
    parse = partial(_plain_row, columns, features.get(columns.get("label")), parent)
    rows = Rows(HubRows(table), rows_name, parse=parse)
    return [select_rows(rows, partial(example_of, columns), split, config.on_bad_row)]


def open_tfds(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split of `tfds` as one corpus.

    Raises:
      UserError: a field is not set or excludes another one, the package is not installed, the
        builder, split, field or language does not exist, a field has another type, the labels are
        hidden, or the set cannot be downloaded.
    """
    name = _required(config, "tfds_name")
    languages = pair_columns(config)
    tfds = _library("tensorflow_datasets", "tfds", "tfds")
    # Builders outside of the folder `datasets`, such as wmt14_translate and glue, are registered
    # only when they are imported.
    for folder in ("summarization", "text", "translate"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tensorflow_datasets.{folder}")
    full_name = _with_pair_config(tfds, name, tuple(languages.values())) if languages else name
    try:
        builder = tfds.builder(full_name, data_dir=config.dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise UserError(f"data.tfds_name: no builder {name!r} ({reason_of(error)})") from error
    features = dict(builder.info.features)
    rows_name = f"data.tfds_name {name}, split {split}"
    columns = find_columns(rows_name, list(features), _named(config))  # before any download
    parse = partial(_plain_row, columns, features.get(columns.get("label")), None)
    rows = Rows(_read_split(builder, name, split), rows_name, parse=parse)
    return [select_rows(rows, partial(example_of, columns), split, config.on_bad_row)]


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


def _required(config: DataConfig, field: str) -> str:
    """The value of a field that the set needs; UserError if it is not set."""
    value = getattr(config, field)
    if not value:
        raise UserError(f"data.{field} is not set: {config.name} needs it")
    return str(value)


def _library(module: str, set_name: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        needs = f"data.name {set_name} needs {module}"
        raise UserError(f"{needs} ({error}): {install_hint(extra)}") from error


def _load(library: Any, config: DataConfig, split: str) -> Any:
    """Rows of a split of a set of `datasets`."""
    folder = Path(config.hf_name or "").expanduser()
    try:
        if (folder / "dataset_info.json").exists() or (folder / "dataset_dict.json").exists():
            loaded = library.load_from_disk(str(folder))
            # A set that was saved without splits is training data.
            splits = loaded if isinstance(loaded, Mapping) else {"train": loaded}
        else:
            name = str(folder) if folder.is_dir() else config.hf_name
            splits = library.load_dataset(name, config.hf_config, cache_dir=config.dir)
    except Exception as error:  # from any of the library's dependencies
        raise UserError(
            f"data.hf_name {config.hf_name} cannot be loaded: {reason_of(error)}"
        ) from error
    for name in _HF_SPLITS[split]:
        if name in splits:
            return splits[name]
    raise MissingSplitError(
        f"data.hf_name {config.hf_name} has no split {_HF_SPLITS[split][0]!r}; it has "
        f"{', '.join(map(str, splits))}"
    )


def _training_files(library: Any, config: DataConfig) -> list[str]:
    """Files of the training split, to be read in blocks."""
    try:
        builder = library.load_dataset_builder(config.hf_name, config.hf_config)
        files = [str(path) for path in builder.config.data_files["train"]]
        for path in files:
            if not has_ending(path, BLOCK_ENDINGS):
                raise ValueError(f"{path} is none of {', '.join(BLOCK_ENDINGS)}")
        return files
    except Exception as error:
        raise UserError(
            f"data.block_megabytes: the files of data.hf_name {config.hf_name} cannot be found "
            f"({reason_of(error)}); leave it out for sets of `save_to_disk`, which are mapped into "
            "memory"
        ) from error


def _with_pair_config(tfds: Any, name: str, languages: tuple[str, ...]) -> str:
    """Appends the builder's config for two languages to its name, if it has configs."""
    try:
        configs = tfds.builder_cls(name).builder_configs
    except (tfds.core.DatasetNotFoundError, ValueError):
        return name  # includes a config already, has prepared files but no code, or does not exist
    if not configs:
        return name
    for pattern in _PAIR_CONFIGS:
        pair_config = pattern.format(*languages)
        if pair_config in configs:
            return f"{name}/{pair_config}"
    raise UserError(
        f"data.tfds_name {name} does not have the languages {' and '.join(languages)}; "
        f"it has {', '.join(configs)}"
    )


def _read_split(builder: Any, name: str, split: str) -> Sequence[Any]:
    """Examples of a split of a builder, which is downloaded and prepared if necessary."""
    split_name = _TFDS_SPLITS[split]
    try:
        builder.download_and_prepare(file_format="array_record")
        return builder.as_data_source(split=split_name)
    except Exception as error:  # from any of TFDS's dependencies
        splits = builder.info.splits
        kind = MissingSplitError if splits and split_name not in splits else UserError
        raise kind(
            f"data.tfds_name {name}: split {split_name!r} cannot be opened in "
            f"{builder.data_dir}: {reason_of(error)}"
        ) from error


def _named(config: DataConfig) -> dict[str, str | None]:
    return {key: column for key, column in named_columns(config).items() if column}


def _plain_row(
    columns: Mapping[str, str], label: Any, parent: str | None, row: Mapping[str, Any]
) -> dict[str, Any]:
    """Values of the columns that are read: text of bytes, and the names of classes.

    Args:
      columns: key of an example -> name of its column.
      label: the library's description of the labels, which may be classes.
      parent: the column that contains these columns, if there is one.
    """
    values = row if parent is None else row[parent] or {}
    plain = {column: _plain(values.get(column)) for column in columns.values()}
    if hasattr(label, "int2str"):
        number = plain[columns["label"]]
        is_hidden = number is None or number < 0
        plain[columns["label"]] = None if is_hidden else str(label.int2str(number))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value

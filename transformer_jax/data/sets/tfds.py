# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Datasets without TensorFlow (array_record files): texts, labels and translations.

`data.tfds_name` is the name of a builder, of TFDS or the user's own. `data.dir` is TFDS's data_dir;
a set that is not prepared there is downloaded and prepared first. Translation sets need
`data.source_language` and `data.target_language`, in either order. For other sets,
`data.text_field`, `data.label_field` and `data.pair_field` name the features to read.
"""

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example
from transformer_jax.data.files.rows import Convert, Rows, select_rows
from transformer_jax.errors import MissingSplitError, UserError, install_hint, reason_of

_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_PAIR_CONFIGS = ("{0}-{1}", "{1}-{0}", "{0}_to_{1}", "{1}_to_{0}", "{0}{1}", "{1}{0}")
"""Names that builders give to their config for a pair of languages."""

ToText = Callable[[Any], str]


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split as one corpus.

    Raises:
      UserError: a field is not set or excludes another one, the package is not installed, the
        builder, split, field or language does not exist, a field has another type, the labels are
        hidden, or the set cannot be downloaded.
    """
    if not (config.source_language or config.target_language):
        return _open_text(config, split)
    for name in ("text_field", "label_field", "pair_field"):
        if getattr(config, name) is not None:
            raise UserError(f"data.{name} is not read if tfds has languages; leave one out")
    return _open_translations(config, split)


def _open_text(config: DataConfig, split: str) -> Sequence[Corpus]:
    name = _required(config, "tfds_name")
    builder = _find_builder(_library(), config, name)
    readers = _readers(config, builder.info.features)  # before anything is downloaded
    examples = _read_split(builder, config, split)
    return [_select(config, split, examples, partial(_text_example, readers=readers))]


def _select(config: DataConfig, split: str, examples: Sequence[Any], convert: Convert) -> Corpus:
    rows = Rows(examples, f"data.tfds_name {config.tfds_name}, split {split}")
    return select_rows(rows, convert, split, config.on_bad_row)


def _readers(config: DataConfig, features: Mapping[str, Any]) -> dict[str, tuple[str, ToText]]:
    """For each field of an example: the builder's feature, and its conversion to text."""
    readers = {"text": _reader(config, features, "text_field", config.text_field or "text")}
    if config.pair_field:
        readers["pair"] = _reader(config, features, "pair_field", config.pair_field)
    if config.label_field:
        readers["label"] = _reader(config, features, "label_field", config.label_field)
    return readers


def _reader(
    config: DataConfig, features: Mapping[str, Any], field: str, name: str
) -> tuple[str, ToText]:
    if name not in features:
        raise UserError(
            f"data.{field}: {config.tfds_name} does not have {name!r}; it has {', '.join(features)}"
        )
    feature = features[name]
    if field == "label_field" and hasattr(feature, "int2str"):
        return name, partial(_class_name, feature, name)
    if getattr(feature, "shape", None) == () and feature.np_dtype == np.object_:
        return name, _decode
    kind = "a class label or text" if field == "label_field" else "text"
    raise UserError(f"data.{field}: {name} of {config.tfds_name} is not {kind}")


def _class_name(feature: Any, name: str, value: Any) -> str:
    if value < 0:  # TFDS's mark of a hidden label
        raise ValueError(f"no label in {name}; choose another split")
    return feature.int2str(int(value))


def _text_example(example: Mapping[str, Any], readers: Mapping[str, tuple[str, ToText]]) -> Example:
    return {key: to_text(example[name]) for key, (name, to_text) in readers.items()}


def _open_translations(config: DataConfig, split: str) -> Sequence[Corpus]:
    name = _required(config, "tfds_name")
    languages = {side: _required(config, f"{side}_language") for side in ("source", "target")}
    tfds = _library()
    name = _with_pair_config(tfds, name, tuple(languages.values()))
    examples = _read_split(_find_builder(tfds, config, name), config, split)
    for side, language in languages.items():
        if language not in examples[0]:
            raise UserError(
                f"data.{side}_language: {config.tfds_name} does not have {language!r}; "
                f"it has {', '.join(examples[0])}"
            )
    return [_select(config, split, examples, partial(_translation_example, languages=languages))]


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


def _translation_example(
    example: Mapping[str, bytes | str], languages: Mapping[str, str]
) -> Example:
    return {side: _decode(example[name]) for side, name in languages.items()}


def _required(config: DataConfig, field: str) -> str:
    value = getattr(config, field)
    if not value:
        raise UserError(f"data.{field} is not set: tfds needs it")
    return value


def _library() -> Any:
    """Imports tensorflow_datasets and its older builders; UserError if it is not installed."""
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise UserError(
            f"data.name tfds needs tensorflow_datasets ({error}): {install_hint('tfds')}"
        ) from error
    # Builders outside of the folder `datasets`, such as wmt14_translate and glue, are registered
    # only when they are imported.
    for folder in ("summarization", "text", "translate"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tensorflow_datasets.{folder}")
    return tfds


def _find_builder(tfds: Any, config: DataConfig, full_name: str) -> Any:
    """Builder of `full_name` (`config.tfds_name` and its config); UserError if there is none."""
    try:
        return tfds.builder(full_name, data_dir=config.dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        raise UserError(
            f"data.tfds_name: no builder {config.tfds_name!r} ({reason_of(error)})"
        ) from error


def _read_split(builder: Any, config: DataConfig, split: str) -> Sequence[Any]:
    """Examples of a split, with random access; downloads and prepares the set if necessary.

    Raises:
      UserError: that fails, or there is no such split.
    """
    try:
        builder.download_and_prepare(file_format="array_record")
        return builder.as_data_source(split=_SPLITS[split])
    except Exception as error:  # from any of TFDS's dependencies
        splits = builder.info.splits
        kind = MissingSplitError if splits and _SPLITS[split] not in splits else UserError
        raise kind(
            f"data.tfds_name {config.tfds_name}: split {_SPLITS[split]!r} cannot be opened in "
            f"{builder.data_dir}: {reason_of(error)}"
        ) from error


def _decode(value: bytes | str) -> str:
    """Text of a feature; TFDS's mock data, which tests use, is a str already."""
    return value.decode() if isinstance(value, bytes) else value

"""Builders of TensorFlow Datasets, without TensorFlow (array_record files).

`data.tfds_name` names the builder, one of TFDS's own or of the user's. `data.dir` is TFDS's
data_dir; what is not prepared there is downloaded and prepared first.
"""

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.errors import UserError

_SPLITS = {"train": "train", "valid": "validation", "test": "test"}


def required(config: DataConfig, field: str) -> str:
    """The value of a field.

    Raises:
      UserError: it is not set.
    """
    if not (value := getattr(config, field)):
        raise UserError(f"data.{field} is not set: tfds needs it")
    return value


def library() -> Any:
    """The package tensorflow_datasets, with its older builders imported.

    Raises:
      UserError: it is not installed.
    """
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise UserError(
            f"data.name tfds asks for the extra [tfds], as in make setup EXTRAS=tfds ({error})"
        ) from error
    # Builders outside of its folder `datasets`, such as wmt14_translate and glue, are found only
    # once they are imported.
    for folder in ("summarization", "text", "translate"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"tensorflow_datasets.{folder}")
    return tfds


def find_builder(tfds: Any, config: DataConfig, full_name: str) -> Any:
    """The builder `full_name`, `config.tfds_name` and perhaps a config of it.

    Raises:
      UserError: there is none.
    """
    try:
        return tfds.builder(full_name, data_dir=config.dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"data.tfds_name: no builder {config.tfds_name!r} ({reason})") from error


def read_split(builder: Any, config: DataConfig, split: str) -> Sequence[Any]:
    """TFDS's examples of a split, random access; downloaded and prepared first where need be.

    Raises:
      UserError: that fails, or there is no such split.
    """
    try:
        builder.download_and_prepare(file_format="array_record")
        return builder.as_data_source(split=_SPLITS[split])
    except Exception as error:  # of many libraries below
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"data.tfds_name {config.tfds_name}: split {_SPLITS[split]!r} cannot be had in "
            f"{builder.data_dir}: {reason}"
        ) from error


def as_text(value: bytes | str) -> str:
    """A text of an example; TFDS's own mock data, which tests use, is decoded already."""
    return value.decode() if isinstance(value, bytes) else value


# FOLDED data.sets.tfds_text: Sets of TensorFlow Datasets with one text an example, or two, and
# perhaps a label: "lm1b", "pg19", "glue/sst2", or one of the user's own. `data.text_field` says
# which field is the text, `data.label_field` and `data.pair_field` which are the label and the
# second text.


Read = Callable[[Any], str]


def open_text_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split.

    Raises:
      UserError: the builder's name is not set, the package is not installed, there is no such
        builder, split or field, a field is not of its kind, the labels are hidden, or the set
        cannot be downloaded.
    """
    name = required(config, "tfds_name")
    builder = find_builder(library(), config, name)
    readers = _readers(config, builder.info.features)  # before anything is downloaded
    examples = read_split(builder, config, split)
    corpus = Parsed(examples, partial(_parse_text, readers=readers))
    if len(corpus):
        corpus[0]  # reports hidden labels now
    return [corpus]


def _readers(config: DataConfig, features: Mapping[str, Any]) -> dict[str, tuple[str, Read]]:
    """For each key of an example the builder's field and what makes text of it."""
    readers = {"text": _reader(config, features, "text_field", config.text_field or "text")}
    if config.pair_field:
        readers["pair"] = _reader(config, features, "pair_field", config.pair_field)
    if config.label_field:
        readers["label"] = _reader(config, features, "label_field", config.label_field)
    return readers


def _reader(
    config: DataConfig, features: Mapping[str, Any], field: str, name: str
) -> tuple[str, Read]:
    if name not in features:
        raise UserError(
            f"data.{field}: {config.tfds_name} does not have {name!r}; it has {', '.join(features)}"
        )
    feature = features[name]
    if field == "label_field" and hasattr(feature, "int2str"):
        return name, partial(_class_name, feature, config)
    if getattr(feature, "shape", None) == () and feature.np_dtype == np.object_:
        return name, as_text
    kind = "a class label or text" if field == "label_field" else "text"
    raise UserError(f"data.{field}: {name} of {config.tfds_name} is not {kind}")


def _class_name(feature: Any, config: DataConfig, value: Any) -> str:
    if value < 0:  # so TFDS marks an example whose label is kept back
        raise UserError(
            f"data.tfds_name {config.tfds_name}: an example has no label in "
            f"{config.label_field}; choose another split"
        )
    return feature.int2str(int(value))


def _parse_text(example: Mapping[str, Any], readers: Mapping[str, tuple[str, Read]]) -> Example:
    return {key: read(example[name]) for key, (name, read) in readers.items()}


# FOLDED data.sets.tfds_translation: Translation sets of TensorFlow Datasets: "wmt14_translate",
# "wmt16_translate", "ted_hrlr_translate", or one of the user's own. `data.source_language` and
# `data.target_language` say the direction; a pair that the builder has is there in both.


_NAMES_OF_A_PAIR = ("{0}-{1}", "{1}-{0}", "{0}_to_{1}", "{1}_to_{0}", "{0}{1}", "{1}{0}")


def open_translation_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split.

    Raises:
      UserError: a field is not set, the package is not installed, there is no such builder, split
        or language, or the set cannot be downloaded.
    """
    name = required(config, "tfds_name")
    languages = {side: required(config, f"{side}_language") for side in ("source", "target")}
    tfds = library()
    name = _with_pair(tfds, name, tuple(languages.values()))
    examples = read_split(find_builder(tfds, config, name), config, split)
    for side, language in languages.items():
        if language not in examples[0]:
            raise UserError(
                f"data.{side}_language: {config.tfds_name} does not have {language!r}; "
                f"it has {', '.join(examples[0])}"
            )
    return [Parsed(examples, partial(_parse_pair, languages=languages))]


def _with_pair(tfds: Any, name: str, languages: tuple[str, ...]) -> str:
    """The builder's name with that of its config for two languages, if it has configs."""
    try:
        known = tfds.builder_cls(name).builder_configs
    except (tfds.core.DatasetNotFoundError, ValueError):
        return name  # has its config, or is of prepared files whose code is not here, or is none
    if not known:
        return name
    for pattern in _NAMES_OF_A_PAIR:
        if (pair := pattern.format(*languages)) in known:
            return f"{name}/{pair}"
    raise UserError(
        f"data.tfds_name {name} does not have the languages {' and '.join(languages)}; "
        f"it has {', '.join(known)}"
    )


def _parse_pair(example: Mapping[str, bytes | str], languages: Mapping[str, str]) -> Example:
    return {side: as_text(example[name]) for side, name in languages.items()}

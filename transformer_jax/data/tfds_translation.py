"""Translation sets of TensorFlow Datasets, read without TensorFlow (array_record files).

`data.tfds_name` names the builder ("wmt14_translate", "wmt16_translate", "ted_hrlr_translate", or
one of the user's own), `data.source_language` and `data.target_language` the direction; a pair that
the builder has is there in both. `data.dir` is TFDS's data_dir; what is not prepared there is
downloaded and prepared first.
"""

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Example, Parsed
from transformer_jax.errors import UserError

_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_NAMES_OF_A_PAIR = ("{0}-{1}", "{1}-{0}", "{0}_to_{1}", "{1}_to_{0}", "{0}{1}", "{1}{0}")


def open_split(config: DataConfig, split: str) -> Sequence[Sequence[Example]]:
    """The one corpus of a split.

    Raises:
      UserError: a field is not set, the package is not installed, there is no such builder, split
        or language, or the set cannot be downloaded.
    """
    for field in ("tfds_name", "source_language", "target_language"):
        if not getattr(config, field):
            raise UserError(f"data.{field} is not set: tfds needs it")
    tfds = _library()
    builder = _builder(tfds, config)
    try:
        builder.download_and_prepare(file_format="array_record")
        examples = builder.as_data_source(split=_SPLITS[split])
    except Exception as error:  # of many libraries below
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UserError(
            f"data.tfds_name {config.tfds_name}: split {_SPLITS[split]!r} cannot be had in "
            f"{builder.data_dir}: {reason}"
        ) from error
    _require_languages(config, examples[0])
    languages = {"source": config.source_language, "target": config.target_language}
    return [Parsed(examples, partial(_parse, languages=languages))]


def _library() -> Any:
    try:
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise UserError(
            f"data.name tfds asks for the extra [tfds], as in make setup EXTRAS=tfds ({error})"
        ) from error


def _builder(tfds: Any, config: DataConfig) -> Any:
    name = config.tfds_name
    # The older builders, wmt14_translate among them, are not found before they are imported.
    with contextlib.suppress(ImportError):
        importlib.import_module(f"tensorflow_datasets.translate.{name.removesuffix('_translate')}")
    try:
        return tfds.builder(_with_pair(tfds, config), data_dir=config.dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"data.tfds_name: no builder {name!r} ({reason})") from error


def _with_pair(tfds: Any, config: DataConfig) -> str:
    """The builder's name with that of its config for the two languages, if it has configs."""
    name = config.tfds_name
    try:
        known = tfds.builder_cls(name).builder_configs
    except tfds.core.DatasetNotFoundError:
        return name  # prepared files of a builder whose code is not here
    if not known or "/" in name:
        return name
    languages = (config.source_language, config.target_language)
    for pattern in _NAMES_OF_A_PAIR:
        if (pair := pattern.format(*languages)) in known:
            return f"{name}/{pair}"
    raise UserError(
        f"data.tfds_name {name} does not have the languages {' and '.join(languages)}; "
        f"it has {', '.join(known)}"
    )


def _require_languages(config: DataConfig, example: Mapping[str, Any]) -> None:
    for field in ("source_language", "target_language"):
        if getattr(config, field) not in example:
            raise UserError(
                f"data.{field}: {config.tfds_name} does not have {getattr(config, field)!r}; "
                f"it has {', '.join(example)}"
            )


def _parse(example: Mapping[str, bytes | str], languages: Mapping[str, str]) -> Example:
    texts = {side: example[language] for side, language in languages.items()}
    # TFDS's own mock data, which tests use, is decoded already.
    return {side: t.decode() if isinstance(t, bytes) else t for side, t in texts.items()}

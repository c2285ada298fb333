"""Sets of TensorFlow Datasets with one text an example, or two, and perhaps a label: "lm1b",
"pg19", "glue/sst2", or one of the user's own.

`data.text_field` says which field is the text, `data.label_field` and `data.pair_field` which are
the label and the second text.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.sets import tfds_builders
from transformer_jax.errors import UserError

Read = Callable[[Any], str]


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split.

    Raises:
      UserError: the builder's name is not set, the package is not installed, there is no such
        builder, split or field, a field is not of its kind, the labels are hidden, or the set
        cannot be downloaded.
    """
    name = tfds_builders.required(config, "tfds_name")
    builder = tfds_builders.find_builder(tfds_builders.library(), config, name)
    readers = _readers(config, builder.info.features)  # before anything is downloaded
    examples = tfds_builders.read_split(builder, config, split)
    corpus = Parsed(examples, partial(_parse, readers=readers))
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
        return name, tfds_builders.as_text
    kind = "a class label or text" if field == "label_field" else "text"
    raise UserError(f"data.{field}: {name} of {config.tfds_name} is not {kind}")


def _class_name(feature: Any, config: DataConfig, value: Any) -> str:
    if value < 0:  # so TFDS marks an example whose label is kept back
        raise UserError(
            f"data.tfds_name {config.tfds_name}: an example has no label in "
            f"{config.label_field}; choose another split"
        )
    return feature.int2str(int(value))


def _parse(example: Mapping[str, Any], readers: Mapping[str, tuple[str, Read]]) -> Example:
    return {key: read(example[name]) for key, (name, read) in readers.items()}

"""Translation sets of TensorFlow Datasets: "wmt14_translate", "wmt16_translate",
"ted_hrlr_translate", or one of the user's own.

`data.source_language` and `data.target_language` say the direction; a pair that the builder has is
there in both.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Example, Parsed
from transformer_jax.data.sets import tfds_builders
from transformer_jax.errors import UserError

_NAMES_OF_A_PAIR = ("{0}-{1}", "{1}-{0}", "{0}_to_{1}", "{1}_to_{0}", "{0}{1}", "{1}{0}")


def open_split(config: DataConfig, split: str) -> Sequence[Sequence[Example]]:
    """The one corpus of a split.

    Raises:
      UserError: a field is not set, the package is not installed, there is no such builder, split
        or language, or the set cannot be downloaded.
    """
    tfds_builders.require(config, "tfds_name", "source_language", "target_language")
    tfds = tfds_builders.library()
    builder = tfds_builders.find_builder(tfds, config, _with_pair(tfds, config))
    examples = tfds_builders.read_split(builder, config, split)
    _require_languages(config, examples[0])
    languages = {"source": config.source_language, "target": config.target_language}
    return [Parsed(examples, partial(_parse, languages=languages))]


def _with_pair(tfds: Any, config: DataConfig) -> str:
    """The builder's name with that of its config for the two languages, if it has configs."""
    name = config.tfds_name
    try:
        known = tfds.builder_cls(name).builder_configs
    except (tfds.core.DatasetNotFoundError, ValueError):
        return name  # has its config, or is of prepared files whose code is not here, or is none
    if not known:
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
    return {side: tfds_builders.as_text(example[name]) for side, name in languages.items()}

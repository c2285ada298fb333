"""Translation sets of TensorFlow Datasets: "wmt14_translate", "wmt16_translate",
"ted_hrlr_translate", or one of the user's own.

`data.source_language` and `data.target_language` say the direction; a pair that the builder has is
there in both.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Example, Parsed
from transformer_jax.data.sets import tfds_builders
from transformer_jax.errors import UserError

_NAMES_OF_A_PAIR = ("{0}-{1}", "{1}-{0}", "{0}_to_{1}", "{1}_to_{0}", "{0}{1}", "{1}{0}")


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split.

    Raises:
      UserError: a field is not set, the package is not installed, there is no such builder, split
        or language, or the set cannot be downloaded.
    """
    name = tfds_builders.required(config, "tfds_name")
    languages = {
        side: tfds_builders.required(config, f"{side}_language") for side in ("source", "target")
    }
    tfds = tfds_builders.library()
    name = _with_pair(tfds, name, tuple(languages.values()))
    examples = tfds_builders.read_split(
        tfds_builders.find_builder(tfds, config, name), config, split
    )
    for side, language in languages.items():
        if language not in examples[0]:
            raise UserError(
                f"data.{side}_language: {config.tfds_name} does not have {language!r}; "
                f"it has {', '.join(examples[0])}"
            )
    return [Parsed(examples, partial(_parse, languages=languages))]


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


def _parse(example: Mapping[str, bytes | str], languages: Mapping[str, str]) -> Example:
    return {side: tfds_builders.as_text(example[name]) for side, name in languages.items()}

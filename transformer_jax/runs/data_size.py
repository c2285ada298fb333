# SPDX-License-Identifier: Apache-2.0
"""Length of training and vocabulary by the size of the data, up to the config's
(`train.scale_to_data`)."""

import logging
import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from transformer_jax.runs.config import load_json, override
from transformer_jax.runs.settings import Settings
from transformer_jax.tokenization import TOKENIZERS

logger = logging.getLogger(__name__)

SCALED = (
    *("train.num_steps", "optimizer.warmup_steps", "tokenizer.vocab_size"),
    *("logging.every_steps", "eval.every_steps", "checkpoint.every_steps"),
)
"""Fields that `scaled_to_data` lowers."""

_EPOCHS = 30  # Multi30k's config trains for 21 epochs, Tatoeba's for 5
_LEAST_STEPS = 400
_TOKEN_CHARACTERS = 4
_BYTES = 256
_MOST_READ = 200_000  # examples


def saved_sizes(path: Path) -> dict[str, int]:
    """The fields `SCALED` in the config.json of a run."""
    saved = load_json(path).values
    return {name: saved[name] for name in SCALED}


def scaled_to_data(
    settings: Settings,
    examples: Sequence[Mapping[str, str]],
    saved: Mapping[str, int] | None = None,
) -> Settings:
    """The settings with the fields `SCALED` lowered to the size of the training data, or as `saved`
    by the run that is resumed.

    The result has `train.scale_to_data` off, so later uses keep its values. Settings that have it
    off are returned unchanged.
    """
    if not settings.train.scale_to_data:
        return settings
    if saved is not None:
        return override(settings, {**saved, "train.scale_to_data": False})
    stride = math.ceil(len(examples) / _MOST_READ)
    sample = [examples[i] for i in range(0, len(examples), stride)]
    sides = [[example[part] for example in sample] for part in ("source", "target")]
    tokens = max(sum(map(len, side)) for side in sides) * stride // _TOKEN_CHARACTERS
    steps = math.ceil(max(_LEAST_STEPS, _EPOCHS * tokens / settings.train.tokens_per_batch))
    sizes = {
        "train.num_steps": steps,
        "optimizer.warmup_steps": max(1, min(steps, settings.train.num_steps) // 10),
        "logging.every_steps": steps // 40,
        "eval.every_steps": steps // 10,
        "checkpoint.every_steps": steps // 10,
        "tokenizer.vocab_size": _vocabulary_size(settings, sides),
    }
    sizes = {name: min(sizes[name], settings.values[name]) for name in SCALED}
    listed = ", ".join(f"{name} {value}" for name, value in sizes.items())
    data = f"{len(examples):,} pairs of about {tokens:,} tokens a side"
    message = "scaled to %s: %s (train.scale_to_data=false takes the config's own values)"
    logger.info(message, data, listed)
    return override(settings, sizes | {"train.scale_to_data": False})


def _vocabulary_size(settings: Settings, sides: Sequence[Sequence[str]]) -> int:
    """Half as many subwords as the texts have words, and all characters: byte-pair encoding can
    always make them, as every word becomes one token after enough merges."""
    tokenizer = settings.tokenizer
    kind = TOKENIZERS[tokenizer.kind]
    if kind.train is None or settings.tokenizers_from:  # it has its size already
        return tokenizer.vocab_size
    texts: Iterable[Sequence[str]] = [sum(map(list, sides), [])] if tokenizer.joint else sides
    sizes = []
    for lines in texts:
        words = {word for line in lines for word in unicodedata.normalize("NFKC", line).split()}
        characters = len({character for word in words for character in word}) + 1  # the space
        sizes.append(kind.least_vocab_size + characters + len(words) // 2)
    return min(sizes) + _BYTES * tokenizer.byte_fallback

# SPDX-License-Identifier: Apache-2.0
"""The speed at which this machine packs the batches of a config, beside a plan of its step."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.data.examples import Corpus, Selection
from transformer_jax.data.files.text import TextBlocks
from transformer_jax.data.sets.download import without_downloads
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.runs import build
from transformer_jax.runs.config import override
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runs.settings import Settings
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import load_tokenizers

_SECONDS = 1.0
_CHARACTERS = 1 << 21
"""Characters of text to pack. A tokenizer is trained on them in a second or two."""


def packing_speed(settings: Settings) -> dict[str, Any]:
    """Measures how many tokens per second one process of this machine packs, for about a second.

    Its texts are the first of the training data, with a tokenizer trained on them. After the first
    visit short texts are packed from their tokens, as in later epochs.

    Returns:
      "tokens_per_s"; or "reason", why nothing was measured: the data are not on this machine, say.
    """
    try:
        with without_downloads(), tempfile.TemporaryDirectory() as folder:
            return {"tokens_per_s": _measure(settings, Path(folder) / "tokenizer")}
    except UserError as error:
        return {"reason": str(error)}


def _measure(settings: Settings, folder: Path) -> int:
    if {"tfds", "hf_dataset"} & {*settings.data.name.split(",")}:
        raise UserError(f"data.name {settings.data.name} may have to be downloaded")
    settings = override(settings, {"data.cache_dir": None, "data.num_workers": 0})
    examples = open_split(settings.data, "train")
    if isinstance(examples, TextBlocks):
        raise UserError("data.block_megabytes reads text from where it is, not from this machine")
    texts = _first_texts(examples)
    build_tokenizers(settings, folder, texts)
    tokenizers = load_tokenizers(folder)
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    rows = build.batch_rows(settings, task)
    batches = build.batches_of(settings, task, texts, rows, logs_overlong=False)
    try:
        return _tokens_per_s(batches, task)
    finally:
        batches.close()


def _first_texts(examples: Corpus) -> Selection:
    """The first examples, with about as many characters as are packed."""
    characters = 0
    count = 0
    while count < len(examples) and characters < _CHARACTERS:
        example = examples[count]
        characters += sum(len(text) for text in example.values() if isinstance(text, str))
        count += 1
    return Selection(examples, np.arange(count))


def _tokens_per_s(batches: TrainBatches, task: Task) -> int:
    next(batches)  # the thread has started
    start = time.perf_counter()
    tokens = 0
    while time.perf_counter() - start < _SECONDS:
        batch = next(batches)
        tokens += sum(int((batch[f"{side}_segment_ids"] > 0).sum()) for side in task.read)
    return round(tokens / (time.perf_counter() - start))

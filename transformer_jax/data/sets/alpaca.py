"""Alpaca: 52,002 instructions with answers that a language model wrote.

Taori et al. 2023, "Stanford Alpaca: An Instruction-following LLaMA model". CC BY-NC 4.0.
"""

from collections.abc import Sequence

import numpy as np

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus, Selection
from transformer_jax.data.files.json_lines import read_conversations
from transformer_jax.data.sets.download import PublicSet

ALPACA = PublicSet(
    name="alpaca",
    files={},
    source="github.com/tatsu-lab/stanford_alpaca has alpaca_data.json; write it as "
    "alpaca_data.jsonl, one object a line",
)

_HELD_OUT = {"valid": 0, "test": 1}
_EVERY = 50


def open_split(config: DataConfig, split: str) -> Sequence[Corpus]:
    """The one corpus of a split: of every 50 instructions the first is of "valid", the second of
    "test", as the set itself has no splits.

    Raises:
      UserError: the file is missing or cannot be used.
    """
    path = ALPACA.path("alpaca_data.jsonl", config.dir)
    answered = read_conversations(path, "train")
    place = np.arange(len(answered)) % _EVERY
    chosen = place == _HELD_OUT[split] if split in _HELD_OUT else place >= len(_HELD_OUT)
    return [Selection(answered, np.flatnonzero(chosen))]

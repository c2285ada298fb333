"""Trains one vocabulary on texts."""

import logging
import random
from collections.abc import Iterable

from transformer_jax.errors import UserError
from transformer_jax.tokenization.characters import well_formed
from transformer_jax.tokenization.config import TOKENIZERS, TokenizerConfig

logger = logging.getLogger(__name__)

MAX_TEXTS = 2_000_000
"""Vocabularies hardly change beyond this; a larger corpus is sampled evenly."""


def train_model(config: TokenizerConfig, texts: Iterable[str], name: str) -> bytes:
    """The content of the vocabulary's file; the same texts give the same.

    Reads the texts once and holds at most MAX_TEXTS of them.

    Args:
      config: what vocabulary to learn.
      texts: to learn from.
      name: whose vocabulary this is, for messages.

    Raises:
      UserError: there is no text, or it does not fit `vocab_size`.
    """
    worded = (text for text in texts if text.strip() or (config.keeps_white_space and text))
    sample = sample_texts(map(well_formed, worded), MAX_TEXTS)
    if not sample:
        raise UserError(f"the {name} tokenizer has no text to learn from: every line is empty")
    train = TOKENIZERS[config.kind].train
    assert train is not None
    model = train(config, sample, name)
    logger.info("trained the %s %s tokenizer on %d texts", name, config.kind, len(sample))
    return model


def sample_texts(texts: Iterable[str], limit: int) -> list[str]:
    """At most `limit` of the texts, each equally likely, the same ones every time.

    Reservoir sampling (Vitter 1985, algorithm R). The sample that sentencepiece can draw itself
    differs from process to process and cannot be seeded.
    """
    draw = random.Random(0).randrange
    sample: list[str] = []
    for index, text in enumerate(texts):
        if index < limit:
            sample.append(text)
        elif (slot := draw(index + 1)) < limit:
            sample[slot] = text
    return sample

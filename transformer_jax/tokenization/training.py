"""Trains one sentencepiece model."""

import io
import logging
import random
import re
from collections.abc import Iterable

import sentencepiece

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import BOS, EOS, PAD, UNK

logger = logging.getLogger(__name__)

MAX_TEXTS = 2_000_000
"""Vocabularies hardly change beyond this; a larger corpus is sampled evenly."""

_TOO_HIGH = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_LOW = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")


def train_model(config: TokenizerConfig, texts: Iterable[str], name: str) -> bytes:
    """The serialized model of `config.kind`; the same texts give the same vocabulary.

    Reads the texts once and holds at most MAX_TEXTS of them. `name` says in messages whose
    vocabulary this is. Raises UserError when there is no text or it does not fit vocab_size.
    """
    sample = sample_texts((text for text in texts if text.strip()), MAX_TEXTS)
    if not sample:
        raise UserError(f"the {name} tokenizer has no text to learn from: every line is empty")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            hard_vocab_limit=config.kind in ("bpe", "unigram"),
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name="nmt_nfkc",
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            # Longer lines would be left out without a word.
            max_sentence_length=2**30,
            # The sum's order in unigram's expectation step, hence the vocabulary, hangs on it.
            num_threads=4,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_explain(str(error), config, name)) from error
    logger.info("trained the %s %s tokenizer on %d texts", name, config.kind, len(sample))
    return model.getvalue()


def sample_texts(texts: Iterable[str], limit: int) -> list[str]:
    """At most `limit` of the texts, each equally likely, the same ones every time.

    Reservoir sampling (Vitter 1985, algorithm R). The sample that sentencepiece can draw itself
    differs from process to process and cannot be seeded.
    """
    draw = random.Random(0).randrange
    sample = []
    for index, text in enumerate(texts):
        if index < limit:
            sample.append(text)
        elif (slot := draw(index + 1)) < limit:
            sample[slot] = text
    return sample


def _explain(message: str, config: TokenizerConfig, name: str) -> str:
    asked = f"tokenizer.vocab_size {config.vocab_size} is too"
    if found := _TOO_HIGH.search(message):
        return f"{asked} large: the {name} text allows at most {found[1]} with {config.kind}"
    if found := _TOO_LOW.search(message):
        return (
            f"{asked} small: the characters of the {name} text alone need {found[1]}; "
            "ask for more, or lower tokenizer.character_coverage"
        )
    return f"sentencepiece could not train the {name} tokenizer: {' '.join(message.split())}"

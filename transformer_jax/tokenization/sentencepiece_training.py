"""Trains one sentencepiece model."""

import io
import re
from collections.abc import Sequence

import sentencepiece

from transformer_jax.errors import UserError
from transformer_jax.tokenization.config import TokenizerConfig
from transformer_jax.tokenization.specials import BOS, EOS, PAD, PIECES, UNK

_TOO_HIGH = re.compile(r"Vocabulary size too high \(\d+\)\. Please set it to a value <= (\d+)")
_TOO_LOW = re.compile(r"Vocabulary size is smaller than required_chars\. \d+ vs (\d+)")

_REFUSED = str.maketrans({"\0": " ", "\u2585": " "})
"""Characters that get no token; a text that holds the second would be left out whole."""


def train_sentencepiece(config: TokenizerConfig, texts: Sequence[str], name: str) -> bytes:
    """The serialized model.

    Raises:
      UserError: with `name` in it: the texts do not fit `vocab_size`.
    """
    keeps_white_space = config.keeps_white_space
    # Line breaks at the end of a text would be stripped; the special token keeps them, and is not
    # learned itself.
    end = PIECES[EOS] if keeps_white_space else ""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(text.translate(_REFUSED) + end for text in texts),
            model_writer=model,
            model_type=config.kind,
            vocab_size=config.vocab_size,
            hard_vocab_limit=config.kind in ("bpe", "unigram"),
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name=config.normalization,
            add_dummy_prefix=not keeps_white_space,
            remove_extra_whitespaces=not keeps_white_space,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_piece=PIECES[PAD],
            unk_piece=PIECES[UNK],
            bos_piece=PIECES[BOS],
            eos_piece=PIECES[EOS],
            # Longer texts would be left out silently.
            max_sentence_length=2**30,
            # The order of the sum in unigram's E-step, and so the vocabulary, depends on it.
            num_threads=4,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_explain(str(error), config, name)) from error
    return model.getvalue()


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

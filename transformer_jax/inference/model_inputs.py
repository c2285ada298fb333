"""One example as a model reads it."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.errors import UserError
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.tokenization import Tokenizer, Tokenizers


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """One example as a model reads it.

    Attributes:
      texts: what is read and written, by its name: "source" and "target", or "text".
      tokens: the ids that each stack reads, by the stack: "encoder", "decoder".
      pieces: the same as their vocabulary writes them.
      inputs: what the model is called with, a batch of one row, filled up with padding.
      outputs: the ids that the last stack's features predict, where they are known.
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, Sequence[int]]
    pieces: Mapping[str, Sequence[str]]
    inputs: tuple[np.ndarray, ...]
    outputs: Sequence[int] | None = None

    @property
    def last_stack(self) -> str:
        """The stack whose features make the logits."""
        return [*self.tokens][-1]


def as_row(tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and segment ids of one row, int32 [1, T], as models take them."""
    batch = padded_batch([{"row": tokens}])
    return batch["row"], batch["row_positions"], batch["row_segment_ids"]


# FOLDED tasks.readings: What the tasks' models read of one example, to be looked at.


logger = logging.getLogger(__name__)


def source_tokens(
    tokenizer: Tokenizer, line: str, limit: int, name: str | None = None
) -> list[int]:
    """A source as an encoder-decoder reads it: at most `limit` tokens, special ones among them;
    warnings call it by its name, such as "line 3", and there are none without one."""
    frame, tokens = tokenizer.specials.translation, tokenizer.encode(line)
    kept = max(0, limit - frame.size())
    if name is not None:
        if not tokens:
            logger.warning("%s is blank, and so is its translation", name)
        if unknown := tokenizer.count_unknown(tokens):
            logger.warning("%s has %d pieces unknown to the tokenizer", name, unknown)
        if len(tokens) > kept:
            logger.warning(
                "%s has %d tokens; only the first %d are translated (data.max_source_length is %d)",
                *(name, len(tokens), kept, limit),
            )
    return frame.around(tokens[:kept])


def text_inputs(
    body: Any,
    tokenizers: Tokenizers,
    text: str,
    target: str | None,
    tokens: Sequence[int],
    *more: np.ndarray,
) -> ModelInputs:
    """What a model reads that has one stack.

    Args:
      body: the model, or what is beneath its head.
      tokenizers: of the side "text".
      text: what was given.
      target: None; UserError for any other, as nothing is written.
      tokens: the text's, with those around it.
      *more: what the model is called with behind the row.
    """
    if target is not None:
        raise UserError("this run's task reads a text alone; give no target")
    stack = "encoder" if isinstance(body, EncoderOnly) else "decoder"
    pieces = tokenizers.text("text").pieces(tokens)
    inputs = (*as_row(tokens), *more)
    return ModelInputs({"text": text}, {stack: tokens}, {stack: pieces}, inputs)


def pair_inputs(
    tokenizers: Tokenizers, texts: Mapping[str, str], source: Sequence[int], target: Sequence[int]
) -> ModelInputs:
    """What an encoder-decoder reads: the source, and the target shifted right.

    Args:
      tokenizers: of the sides "source" and "target".
      texts: of both sides.
      source, target: their tokens, special ones among them.
    """
    shifted = [tokenizers.specials("target").start, *target[:-1]]
    return ModelInputs(
        texts=texts,
        tokens={"encoder": source, "decoder": shifted},
        pieces={
            "encoder": tokenizers.text("source").pieces(source),
            "decoder": tokenizers.text("target").pieces(shifted),
        },
        inputs=(*as_row(source), *as_row(shifted)),
        outputs=target,
    )

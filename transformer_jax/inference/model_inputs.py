# SPDX-License-Identifier: Apache-2.0
"""Model inputs of one example, for inspection."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.errors import UserError, user_errors
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.positions import check_num_positions
from transformer_jax.summary import Summarized
from transformer_jax.tokenization import Tokenizers


@dataclasses.dataclass(frozen=True, repr=False)
class ModelInputs(Summarized):
    """One example as a model reads it.

    Attributes:
      texts: texts that are read and written, by name: "source" and "target", or "text".
      tokens: token ids that each stack reads, by stack: "encoder", "decoder".
      pieces: the same tokens as pieces of their vocabulary.
      inputs: arguments of the model's call: a batch of one row, padded.
      outputs: token ids that the last stack predicts, if they are known.
      labeled: positions that a tagger labels; None: a classifier's text has one label.
      gold: right labels of the text or of `labeled`, if they are given.
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, Sequence[int]]
    pieces: Mapping[str, Sequence[str]]
    inputs: tuple[np.ndarray, ...]
    outputs: Sequence[int] | None = None
    labeled: Sequence[int] | None = None
    gold: Sequence[str] = ()

    def summary(self) -> Mapping[str, Any]:
        read = {stack: " ".join(pieces) for stack, pieces in self.pieces.items()}
        return {**self.texts, **read}

    @property
    def last_stack(self) -> str:
        """Stack whose features make the logits."""
        return [*self.tokens][-1]


def as_row(tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, positions and segment ids of one row, int32 [1, T]: the inputs of a model."""
    batch = padded_batch([{"row": tokens}])
    return batch["row"], batch["row_positions"], batch["row_segment_ids"]


def text_inputs(
    body: Any,
    tokenizers: Tokenizers,
    text: str,
    target: str | None,
    tokens: Sequence[int],
    *more: np.ndarray,
) -> ModelInputs:
    """Inputs of a model that reads one text; `more` are arguments of its call after the row.
    UserError if a target is given, or the text exceeds the positions that the model knows."""
    if target is not None:
        raise UserError("this run's task reads a text alone; give no target")
    _require_positions(body, len(tokens))
    stacks = {"encoder" if isinstance(body, EncoderOnly) else "decoder": tokens}
    if isinstance(body, EncoderDecoder):
        stacks = {"encoder": tokens, "decoder": [body.config.start_id, *tokens[:-1]]}
    pieces = {stack: tokenizers.text("text").pieces(ids) for stack, ids in stacks.items()}
    return ModelInputs({"text": text}, stacks, pieces, (*as_row(tokens), *more))


def pair_inputs(
    model: Any,
    tokenizers: Tokenizers,
    texts: Mapping[str, str],
    source: Sequence[int],
    target: Sequence[int],
) -> ModelInputs:
    """Inputs of an encoder-decoder: the source, and the target shifted right. UserError if one of
    them exceeds the positions that the model knows."""
    _require_positions(model, max(len(source), len(target)))
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


def _require_positions(model: Any, length: int) -> None:
    with user_errors("the text is too long", "; give a shorter one"):
        check_num_positions(model.config, length)

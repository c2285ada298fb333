# SPDX-License-Identifier: Apache-2.0
"""Denoising: a model learns to restore corrupted text (`corruptions`), with any architecture.

B batch, T slots of a row, V vocabulary.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from transformer_jax.data.batches.loss_masks import LOSS_MASK_FEATURES, loss_mask_features
from transformer_jax.data.examples import Corpus, Features
from transformer_jax.inference.config import TARGET_FIELDS, DecodeConfig
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.models import MODELS
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.tasks.base import BaseTask
from transformer_jax.tasks.corruptions import (
    OBJECTIVES,
    Causal,
    Diffusion,
    Infilling,
    MaskedTokens,
    Rewriting,
    TextTokens,
)
from transformer_jax.tasks.diffusion import MaskedDiffusion
from transformer_jax.tasks.interface import Params, Prediction, Task, TaskParts
from transformer_jax.tasks.language_modeling import DocumentTask, DocumentWindows, LanguageModeling
from transformer_jax.tasks.line_warnings import LineWarnings, read_lines
from transformer_jax.tasks.losses import ContextTarget, with_loss_mask
from transformer_jax.tasks.masked_lm import MaskedLanguageModeling, fill_blanks, mask_text
from transformer_jax.tasks.translation import Translation
from transformer_jax.tokenization import Tokenizers

SENTENCE_ENDS = (".", "!", "?")


def build(parts: TaskParts) -> Task:
    """Makes the task of `task.objective` for the architecture.

    Raises:
      ValueError: the objective does not go with the architecture, its options, the vocabulary or
        the length of a text.
    """
    objective = OBJECTIVES.find(parts.task.objective or "")
    by_model = next(tasks for base, tasks in TASKS_OF.items() if issubclass(objective, base))
    for model, task in by_model.items():
        if issubclass(parts.model_class, model):
            return task.build(parts)
    fitting = [name for name, model in MODELS.items() if issubclass(model, tuple(by_model))]
    raise ValueError(
        f"task.objective {parts.task.objective!r} does not go with architecture "
        f"{parts.model.architecture!r}; it asks for {' or '.join(fitting)}"
    )


def rewriting(parts: TaskParts) -> Rewriting:
    """Makes the corruption of the objective.

    Raises:
      ValueError: the vocabulary has too few extra tokens.
    """
    length = parts.data.max_length
    objective: Any = OBJECTIVES.find(parts.task.objective or "")
    ends_sentence = np.zeros(parts.vocab_sizes["text"], bool)
    if parts.tokenizers.sides:
        pieces = parts.tokenizers.text("text").pieces(range(len(ends_sentence)))
        ends_sentence[:] = [piece.endswith(SENTENCE_ENDS) for piece in pieces]
    text = TextTokens(parts.tokenizers.specials("text"), ends_sentence)
    corruption: Rewriting = objective.of(parts.task, text)
    if isinstance(corruption, Infilling):
        parts.require_mask()
    mean_length = getattr(getattr(corruption, "settings", None), "mean_length", 0)
    if mean_length > length:
        raise ValueError(
            f"task.{parts.task.objective}.mean_length is {mean_length:g}, and a text has {length} "
            "tokens (data.max_length); lower it"
        )
    needed = corruption.num_extra(length)
    available = len(corruption.text.specials.extra)
    if parts.tokenizers.sides and available < needed:
        raise ValueError(
            f"task.objective {parts.task.objective!r} needs {needed} extra tokens for texts of "
            f"{length} tokens, and the tokenizer has {available}; train one with "
            f"tokenizer.extra_tokens={needed}, or lower data.max_length"
        )
    return corruption


def text_windows(parts: TaskParts) -> DocumentWindows:
    """Cuts documents into texts of `data.max_length` tokens."""
    return DocumentWindows.of(parts, parts.tokenizers.specials("text").eos, parts.data.max_length)


def whole_text(window: Features, end: int) -> np.ndarray:
    """Tokens of a window, at least two, without an end token that closes it."""
    target = window["target"]
    if len(target) > 2 and target[-1] == end:  # source and target get end tokens of their own
        return target[:-1]
    # A single token comes with the one before it.
    return target if len(target) > 1 else np.concatenate([window["input"][:1], target])


@dataclasses.dataclass(frozen=True, repr=False)
class DenoisingPairs(DocumentTask, Translation):
    """Denoising with an encoder-decoder: the source is read, the target is written.

    Rows are as long as the longest source and target of a text of `data.max_length` tokens.

    Attributes:
      corruption: makes source and target of a text.
    """

    corruption: Rewriting = dataclasses.field(kw_only=True)
    windows: DocumentWindows = dataclasses.field(kw_only=True)
    best_by: ClassVar[str] = "-loss"
    evaluates_by: ClassVar[Sequence[str]] = ()
    predicts_by: ClassVar[Sequence[str]] = TARGET_FIELDS

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        corruption = rewriting(parts)
        sizes = corruption.longest(parts.data.max_length)
        frame = parts.tokenizers.specials("text").translation
        data = dataclasses.replace(
            parts.data,
            max_source_length=sizes.source + frame.size(),
            max_target_length=sizes.target + frame.size(),
        )
        return super().build(
            dataclasses.replace(
                parts,
                data=data,
                vocab_sizes=dict.fromkeys(("source", "target"), parts.vocab_sizes["text"]),
                tokenizers=both_sides(parts.tokenizers),
            ),
            corruption=corruption,
            windows=text_windows(parts),
        )

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """Returns source and target of a text, corrupted anew at each visit."""
        pair = self.corruption(whole_text(example, self.specials.eos), rng)
        frame = self.specials.translation
        return {
            "source": np.array(frame.around(pair.source.tolist()), np.int32),
            "target": np.array(frame.around(pair.target.tolist()), np.int32),
        }

    evaluate = BaseTask.evaluate

    def check_search(self, examples: Corpus, decode: DecodeConfig) -> None:
        """Accepts all settings: an evaluation searches for no outputs."""

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields the outputs for each line as a source. [MASK]s of a line are filled in place if
        the objective writes a span for each; spans are separated by tabs otherwise."""
        blank = mask_text(self.tokenizers.text("text"))
        for line, outputs in zip(
            lines, super().predict(params, lines, decode, first_line), strict=True
        ):
            if blank and blank in line and self.corruption.writes_spans:
                filled = [fill_blanks(line, blank, o.text.split("\t")) for o in outputs]
                yield [Prediction(f, o.score) for f, o in zip(filled, outputs, strict=True)]
            else:
                yield outputs

    def _encode_source(self, line: str, warnings: LineWarnings) -> list[int]:
        frame = self.specials.translation
        framed = super()._encode_source(line, warnings)
        tokens = framed[len(frame.head) : len(framed) - len(frame.tail)]
        return frame.around(self.corruption.prompt(tokens))

    def _decode(self, prefix: Sequence[int], tokens: np.ndarray) -> str:
        if not self.corruption.writes_spans:
            return super()._decode(prefix, tokens)
        starts = np.flatnonzero(np.isin(tokens, self.corruption.text.specials.extra))
        before, *spans = np.split(tokens, starts)
        parts = [before, *spans] if len(before) else spans
        return "\t".join([super(DenoisingPairs, self)._decode(prefix, part) for part in parts])


@dataclasses.dataclass(frozen=True, repr=False)
class DenoisingSequences(LanguageModeling):
    """Denoising with a decoder: source, start token and target are one sequence, and the loss is
    that of the target.

    Attention is causal, or with `model.attention_layer` "prefix" in both directions up to the start
    token (Raffel et al. 2020, section 3.2.1). Rows are as long as the longest sequence of a text of
    `data.max_length` tokens.

    Attributes:
      corruption: makes source and target of a text.
    """

    corruption: Rewriting = dataclasses.field(kw_only=True)
    features: ClassVar[Sequence[str]] = LOSS_MASK_FEATURES

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        corruption = rewriting(parts)
        windows = text_windows(parts)
        # The start token is read, the end token is predicted alone.
        length = corruption.longest(parts.data.max_length).both + 1
        parts = dataclasses.replace(parts, data=dataclasses.replace(parts.data, max_length=length))
        return super().build(parts, corruption=corruption, windows=windows, **fields)

    def preprocess(self, example: Features, rng: np.random.Generator) -> Features:
        """Returns the sequence of a text, corrupted anew at each visit: "input", "target", shifted
        by one token, and "counted"."""
        specials = self.specials
        pair = self.corruption(whole_text(example, specials.eos), rng)
        # A prefix ends with its first start token, and some vocabularies end documents with that.
        text = pair.source[pair.source != specials.start]
        source = [*text.tolist(), specials.start]
        target = [*pair.target.tolist(), specials.eos]
        return loss_mask_features(*with_loss_mask(source, target))

    metrics = BaseTask.metrics  # of the targets alone: no bits per byte of the text

    def pair_tokens(self, number: int, source: str, target: str) -> ContextTarget:
        """Tokens of a source, read as it is written, with the start token, and of the target."""
        encode = self.tokenizers.text("text").encode
        return [*encode(source), self.specials.start], encode(target)

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """Returns a source as the model reads it, with the target after its start token, if there
        is one."""
        [prompt] = read_lines([source], 1, self._prompt)
        target_tokens = self.tokenizers.text("text").encode(target or "")
        tokens = self.token_generator.fit_context([*prompt, *target_tokens])
        text = source + (target or "")
        return text_inputs(self.model, self.tokenizers, text, None, tokens)

    def _prompt(self, line: str, warnings: LineWarnings) -> list[int]:
        first, *tokens = super()._prompt(line, warnings)
        return [*self.corruption.prompt(tokens), self.specials.start]


def both_sides(tokenizers: Tokenizers) -> Tokenizers:
    """Gives source and target the tokenizer of the side "text"."""
    if not tokenizers.sides:
        return tokenizers
    sides = ("text", "source", "target")
    return dataclasses.replace(
        tokenizers,
        sides=dict.fromkeys(sides, tokenizers.sides["text"]),
        sha256=dict.fromkeys(sides, tokenizers.sha256["text"]) if tokenizers.sha256 else {},
    )


TASKS_OF: dict[type, dict[type, Any]] = {
    Causal: {DecoderOnly: LanguageModeling},
    MaskedTokens: {EncoderOnly: MaskedLanguageModeling},
    Diffusion: {EncoderOnly: MaskedDiffusion, DecoderOnly: MaskedDiffusion},
    Rewriting: {Seq2Seq: DenoisingPairs, DecoderOnly: DenoisingSequences},
}
"""For each kind of objective the task that learns it with a model, {objective: {model: task}}."""

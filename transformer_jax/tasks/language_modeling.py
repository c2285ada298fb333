# SPDX-License-Identifier: Apache-2.0
"""Language modeling: next-token prediction on documents, and generation of text.

B batch, T tokens, V vocabulary.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from transformer_jax.data.batches.order import WindowedBlocks
from transformer_jax.data.batches.token_cache import TokenCache
from transformer_jax.data.batches.windows import (
    DocumentPieces,
    TokenStream,
    Windows,
    document_separator,
    store_token_stream,
)
from transformer_jax.data.examples import Corpus, Features, Parsed, map_corpora
from transformer_jax.data.files.text import TextBlocks
from transformer_jax.inference.config import CONTINUATION_FIELDS, DecodeConfig
from transformer_jax.inference.generation import TokenGenerator
from transformer_jax.inference.model_inputs import ModelInputs, text_inputs
from transformer_jax.metrics import compute_metrics
from transformer_jax.tasks.base import BaseTask, CausalTask
from transformer_jax.tasks.interface import Params, Prediction, TaskParts
from transformer_jax.tasks.line_warnings import LineWarnings, read_lines
from transformer_jax.tokenization import SampledTokenizer, SpecialTokens, Tokenizers

MOST_STARTS = 1 << 24
"""Largest number of training windows that overlap; in longer texts their starts are further apart,
up to windows that tile the text."""

SAMPLED_BLOCK = 1 << 16
"""Tokens whose text is cut at once into tokens drawn at random."""


@dataclasses.dataclass(frozen=True)
class DocumentWindows:
    """Cuts documents into windows of tokens. With `tokenizers.sampling` the tokens of a block are
    drawn at random whenever it is cut.

    Attributes:
      packing: "together": windows of the concatenated documents; training windows start anywhere,
        evaluation windows tile the text. "apart": no token sees another document.
      first: token before each document.
      length: tokens of a window.
    """

    packing: str
    first: int
    length: int
    caching: TokenCache = TokenCache()
    num_train_tokens: int | None = None

    @classmethod
    def of(cls, parts: TaskParts, first: int, length: int) -> Self:
        data = parts.data
        return cls(data.packing, first, length, parts.caching, data.num_train_tokens)

    def cut(self, examples: Corpus, tokenizers: Tokenizers, training: bool) -> Sequence[Any]:
        """Windows of the documents {"text": str}. Each document ends with EOS.

        Corpora with weights are cut one by one. Text in blocks becomes `WindowedBlocks`: each block
        is cut by itself, and its windows tile it. So does all training text whose tokens are drawn
        at random.

        Raises:
          UserError: there is no text, or no room for its tokens.
        """
        if training and isinstance(examples, TextBlocks):
            documents = Parsed(range(len(examples)), examples.documents)
            return WindowedBlocks(documents, functools.partial(self._of_documents, tokenizers))
        is_sampled = training and tokenizers.sampling > 0

        def cut(part: Corpus) -> Sequence[Any]:
            stream = self._stream(part, tokenizers, training)
            if is_sampled:
                return stream.blocks(SAMPLED_BLOCK, whole_documents=self.packing == "apart")
            stride = self.length
            if training:
                stride = min(stride, math.ceil(len(stream.tokens) / MOST_STARTS))
            return self._windows(stream, stride)

        pieces = map_corpora(examples, cut)
        if not is_sampled:
            return pieces
        return WindowedBlocks(pieces, functools.partial(self._of_block, tokenizers))

    def _stream(self, examples: Corpus, tokenizers: Tokenizers, training: bool) -> TokenStream:
        """The documents as one stream, from the cache if they are long."""
        tokenizer = tokenizers.text("text")
        digest = tokenizers.sha256.get("text")
        stream = self.caching.read_or_encode(examples, tokenizer, digest, self.first)
        if stream is None:
            documents = (tokenizer.encode(example["text"]) for example in examples)
            stream = store_token_stream(documents, self.first, tokenizer.specials.eos)
        return stream.first(self.num_train_tokens) if training and self.num_train_tokens else stream

    def _windows(self, stream: TokenStream, stride: int) -> Sequence[Features]:
        if self.packing == "apart":
            return DocumentPieces(stream, self.length)
        return Windows(stream.tokens, self.length, stride)

    def _of_documents(
        self, tokenizers: Tokenizers, documents: Sequence[str], rng: np.random.Generator
    ) -> Sequence[Features]:
        """Windows of a block of documents, which become one empty document if none has any
        token."""
        tokenizer = tokenizers.text("text")
        end = tokenizer.specials.eos
        first = np.array([self.first], np.int32)
        arrays = [np.asarray(tokenizer.encode(text), np.int32) for text in documents]
        if not any(map(len, arrays)):
            return [{"input": first, "target": np.array([end], np.int32)}]
        between = document_separator(self.first, end)
        tokens = np.concatenate([first, *(part for ids in arrays for part in (ids, between))])
        sizes = np.array([*map(len, arrays)], np.int64)
        stream = TokenStream.from_sizes(tokens, sizes, len(between))
        return self._of_block(tokenizers, stream, rng)

    def _of_block(
        self, tokenizers: Tokenizers, stream: TokenStream, rng: np.random.Generator
    ) -> Sequence[Features]:
        """Windows that tile a part of a stream."""
        tokenizer = tokenizers.sampled(rng).text("text")
        if isinstance(tokenizer, SampledTokenizer):
            stream = stream.resegmented(tokenizer.resegment)
        return self._windows(stream, self.length)


class DocumentTask(BaseTask):
    """Base of the tasks on documents {"text": str}.

    Attributes:
      windows: cuts documents into texts.
    """

    windows: DocumentWindows

    @property
    def specials(self) -> SpecialTokens:
        return self.tokenizers.specials("text")

    def prepare(self, examples: Corpus, training: bool) -> Sequence[Any]:
        """Returns windows, or pieces, of the documents' tokens: "input" and "target", which is
        shifted by one token."""
        return self.windows.cut(examples, self.tokenizers, training)


@dataclasses.dataclass(frozen=True, repr=False)
class LanguageModeling(DocumentTask, CausalTask):
    """Language modeling with a decoder-only model on documents {"text": str}.

    A document has a first token before it and an end token after it. If both are the same token,
    such as GPT-2's <|endoftext|>, there is one of them between two documents.
    """

    windows: DocumentWindows
    features: ClassVar[Sequence[str]] = ("input", "target")
    predicts_by: ClassVar[Sequence[str]] = CONTINUATION_FIELDS

    @classmethod
    def build(cls, parts: TaskParts, **fields: Any) -> Self:
        first = parts.tokenizers.specials("text").first
        windows = DocumentWindows.of(parts, first, parts.data.max_length)
        return super().build(parts, **{"windows": windows, **fields})

    def metrics(self, sums: Mapping[str, Any], examples: Corpus) -> dict[str, Any]:
        """Returns loss and perplexity per token, and two metrics that compare models with different
        tokenizers: bits per byte, and perplexity per word (words are separated by white space, and
        a line end counts as a word).

        These two are left out if the tokenizer loses text, such as line ends or unknown words: the
        lost text would count as predicted at no cost.
        """
        texts = [example["text"] for example in examples]
        tokenizer = self.tokenizers.text("text")
        if any(tokenizer.decode(tokenizer.encode(text)) != text for text in texts):
            return compute_metrics(sums)
        words = sum(len(text.split()) + text.count("\n") for text in texts)
        size = sum(len(text.encode()) for text in texts)
        return compute_metrics(sums) | {
            "bits_per_byte": sums["nll"] / math.log(2) / max(size, 1),
            # A float holds at most about e^709.
            "word_perplexity": math.exp(min(sums["nll"] / max(words, 1), 700.0)),
        }

    def predict(
        self, params: Params, lines: Sequence[str], decode: DecodeConfig, first_line: int = 1
    ) -> Iterator[list[Prediction]]:
        """Yields `decode.num_outputs` continuations of each line, without the line, most likely
        first. A score is the log-probability in nats of all tokens up to the end token, or to the
        one that completes a text of `decode.stop`.

        A prompt longer than the context is continued from its last half a context, and pieces
        unknown to the tokenizer are left to the model; each with a warning that names the line.

        Raises:
          UserError: the search cannot generate token by token, such as beam search.
        """
        numbers = range(first_line, first_line + len(lines))
        prompts = read_lines(lines, first_line, self._prompt)
        yield from self.token_generator.texts(params, prompts, decode, numbers)

    def stream(self, params: Params, line: str, decode: DecodeConfig) -> Iterator[str]:
        [prompt] = read_lines([line], 1, self._prompt)
        return self.token_generator.stream(params, prompt, decode)

    def _prompt(self, line: str, warnings: LineWarnings) -> list[int]:
        tokenizer = self.tokenizers.text("text")
        prompt = [tokenizer.specials.first, *warnings.encode(tokenizer, line)]
        if len(prompt) > self.max_length:
            read = len(self.token_generator.fit_context(prompt))
            limit = f"last {read} (data.max_length is {self.max_length})"
            count = len(prompt) - 1
            message = f"{warnings.name} has {count} tokens, more than the model sees; it is"
            several = "have more tokens than the model sees; they are continued from their"
            warnings.add(f"{message} continued from its {limit}", f"{several} {limit}")
        return prompt

    def model_inputs(
        self, params: Params, source: str, target: str | None, decode: DecodeConfig
    ) -> ModelInputs:
        """Returns a text as the model reads it, with the target after it, if there is one."""
        text = source + (target or "")
        [prompt] = read_lines([text], 1, self._prompt)
        tokens = self.token_generator.fit_context(prompt)
        return text_inputs(self.model, self.tokenizers, text, None, tokens)

    @functools.cached_property
    def token_generator(self) -> TokenGenerator:
        sides = self.tokenizers
        tokenizer = sides.text("text") if "text" in sides.sides else None
        return TokenGenerator(self.model, self.max_length, self.specials, tokenizer=tokenizer)

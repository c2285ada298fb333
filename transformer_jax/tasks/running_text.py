"""What the tasks on running text share: documents as one stream, cut into windows."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transformer_jax.data.batches.order import WindowedBlocks
from transformer_jax.data.batches.token_cache import TokenCacheOptions
from transformer_jax.data.batches.windows import (
    DocumentPieces,
    TokenStream,
    Windows,
    document_separator,
    store_token_stream,
)
from transformer_jax.data.examples import Corpora, Corpus, Features
from transformer_jax.data.files.text import TextBlocks
from transformer_jax.tokenization import Tokenizer, Tokenizers

MOST_STARTS = 1 << 24
"""The most places at which training windows start; in longer texts they are further apart."""


@dataclass(frozen=True)
class RunningText:
    """How documents become rows.

    Attributes:
      packing: "together": rows are windows of all documents run together; training takes windows
        that start anywhere, evaluation those that tile the text. "apart": no token sees another
        document.
      caching: whether their tokens are kept.
    """

    packing: str
    caching: TokenCacheOptions = TokenCacheOptions()

    def windows(
        self, examples: Corpus, tokenizers: Tokenizers, *, first: int, length: int, training: bool
    ) -> Sequence[Any]:
        """The documents {"text": str} as windows of tokens, each document ended by `eos`. Corpora
        with weights are cut one by one; text in blocks becomes `WindowedBlocks`, whose windows tile
        each block.

        Args:
          examples: the documents.
          tokenizers: of the side "text".
          first: the token before each document.
          length: tokens of a window.
          training: whether windows run together start anywhere; otherwise they tile the text.

        Raises:
          UserError: there is no text, or no room for its tokens.
        """
        tokenizer = tokenizers.text("text")
        if training and isinstance(examples, TextBlocks):
            return WindowedBlocks(examples, _Cut(tokenizer, first, length, self.packing))
        if isinstance(examples, Corpora) and examples.weights:
            cut = functools.partial(
                self.windows, tokenizers=tokenizers, first=first, length=length, training=training
            )
            return examples.map_parts(cut)
        cache = self.caching.open(tokenizers.sha256.get("text"))
        stream = cache.read_or_encode(examples, tokenizer, first) if cache else None
        if stream is None:
            documents = (tokenizer.encode(example["text"]) for example in examples)
            stream = store_token_stream(documents, first, tokenizer.specials.eos)
        if self.packing == "apart":
            return DocumentPieces(stream, length)
        stride = math.ceil(len(stream.tokens) / MOST_STARTS) if training else length
        return Windows(stream.tokens, length, stride)


@dataclass(frozen=True)
class _Cut:
    """Documents as windows that tile them; those without a token as one that ends at once."""

    tokenizer: Tokenizer
    first: int
    length: int
    packing: str

    def __call__(self, documents: Sequence[str]) -> Sequence[Features]:
        end = self.tokenizer.specials.eos
        between, stream = document_separator(self.first, end), [np.array([self.first], np.int32)]
        sizes = []
        for tokens in map(self.tokenizer.encode, documents):
            sizes.append(len(tokens))
            stream += [np.asarray(tokens, np.int32), between]
        if not any(sizes):
            nothing = {"input": self.first, "target": end}
            return [{name: np.array([token], np.int32) for name, token in nothing.items()}]
        laid = TokenStream.from_sizes(
            np.concatenate(stream), np.array(sizes, np.int64), len(between)
        )
        if self.packing == "apart":
            return DocumentPieces(laid, self.length)
        return Windows(laid.tokens, self.length, self.length)

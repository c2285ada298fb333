"""What the tasks on running text share: documents as one stream, cut into windows."""

import math
from dataclasses import dataclass

from transformer_jax.data.batches.token_cache import token_cache
from transformer_jax.data.batches.windows import Pieces, Windows, token_stream
from transformer_jax.data.examples import Corpora, Corpus
from transformer_jax.errors import UserError
from transformer_jax.tokenization import Tokenizers

MOST_STARTS = 1 << 24
"""The most places at which training windows start; in longer texts they are further apart."""


@dataclass(frozen=True)
class RunningText:
    """How documents become rows.

    Attributes:
      packing: "together": rows are windows of all documents run together; training takes windows
        that start anywhere, evaluation those that tile the text. "apart": no token sees another
        document.
      cache_dir: where their tokens are kept, as `data.cache_dir`.
    """

    packing: str
    cache_dir: str | None = None

    def windows(
        self, examples: Corpus, tokenizers: Tokenizers, *, first: int, length: int, training: bool
    ) -> Pieces | Windows:
        """The documents {"text": str} as windows of tokens, each document ended by `eos`.

        Args:
          examples: the documents.
          tokenizers: of the side "text".
          first: the token before each document.
          length: tokens of a window.
          training: whether windows run together start anywhere; otherwise they tile the text.

        Raises:
          UserError: the corpora have weights, which one stream cannot follow, or hold no text; or
            there is no room for their tokens.
        """
        if isinstance(examples, Corpora) and examples.weights:
            raise UserError("data.weights: running text is one stream; leave the weights out")
        tokenizer = tokenizers.text("text")
        cache = token_cache(self.cache_dir, tokenizers.sha256.get("text"))
        stream = cache.stream(examples, tokenizer, first) if cache else None
        if stream is None:
            documents = (tokenizer.encode(example["text"]) for example in examples)
            stream = token_stream(documents, first, tokenizer.specials.eos)
        if self.packing == "apart":
            return Pieces(stream, length)
        stride = math.ceil(len(stream.tokens) / MOST_STARTS) if training else length
        return Windows(stream.tokens, length, stride)

"""What the tasks on running text share: documents as one stream, cut into windows."""

import math

from transformer_jax.data.batches.windows import Pieces, Windows, token_stream
from transformer_jax.data.examples import Corpora, Corpus
from transformer_jax.errors import UserError
from transformer_jax.tokenization import Tokenizer

MOST_STARTS = 1 << 24
"""The most places at which training windows start; in longer texts they are further apart."""


def text_windows(
    examples: Corpus,
    tokenizer: Tokenizer,
    *,
    first: int,
    length: int,
    packing: str,
    training: bool,
) -> Pieces | Windows:
    """The documents {"text": str} as windows of tokens, each document ended by `eos`.

    Args:
      examples: the documents.
      tokenizer: of their text.
      first: the token before each document.
      length: tokens of a window.
      packing: "together": windows go on across the ends of documents. "apart": none does.
      training: whether windows run together start anywhere; otherwise they tile the text.

    Raises:
      UserError: the corpora have weights, which one stream cannot follow, or hold no text.
    """
    if isinstance(examples, Corpora) and examples.weights:
        raise UserError("data.weights: running text is one stream; leave the weights out")
    documents = (tokenizer.encode(example["text"]) for example in examples)
    stream = token_stream(documents, first, tokenizer.specials.eos)
    if packing == "apart":
        return Pieces(stream, length)
    stride = math.ceil(len(stream.tokens) / MOST_STARTS) if training else length
    return Windows(stream.tokens, length, stride)

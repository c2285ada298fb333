"""Pairs of texts as tokens: those of a large set are encoded once and kept."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.batches.token_cache import TokenCache
from transformer_jax.data.batches.token_caching import TokenCaching
from transformer_jax.data.batches.windows import TokenStream
from transformer_jax.data.examples import Corpora, Corpus, Example, Features, Parsed, RandomAccess
from transformer_jax.tokenization import Tokenizers

_SIDES = ("source", "target")


def pairs_as_tokens(
    examples: Corpus, tokenizers: Tokenizers, caching: TokenCaching
) -> Sequence[Features]:
    """The tokens of both sides of each pair, {"source": int32 [n], "target": int32 [m]}, without
    special tokens. Those of a large set are encoded now, and kept; those of a small one, or where
    nothing is kept, whenever they are asked for.

    Args:
      examples: {"source": str, "target": str}.
      tokenizers: of these two sides.
      caching: whether tokens are kept.

    Raises:
      UserError: there is no room for the tokens in a folder that the user named.
    """
    if isinstance(examples, Corpora) and examples.weights:
        return examples.each(lambda part: pairs_as_tokens(part, tokenizers, caching))
    streams = {}
    for side in _SIDES:
        cache = caching.cache(tokenizers.sha256.get(side))
        stream = _kept(examples, side, tokenizers, cache) if cache else None
        if stream is None:
            return Parsed(examples, functools.partial(_encoded, tokenizers))
        streams[side] = stream
    return _KeptPairs(streams)


def _kept(
    examples: Corpus, side: str, tokenizers: Tokenizers, cache: TokenCache
) -> TokenStream | None:
    """One side as documents, with an end behind each; None where it is not worth keeping."""
    tokenizer = tokenizers.text(side)
    texts = Parsed(examples, functools.partial(_text_of, side))
    return cache.stream(texts, tokenizer, first=tokenizer.specials.eos)


def _text_of(side: str, pair: Example) -> Example:
    return {"text": pair[side]}


def _encoded(tokenizers: Tokenizers, pair: Example) -> Features:
    return {side: np.array(tokenizers.text(side).encode(pair[side]), np.int32) for side in _SIDES}


@dataclass(frozen=True, repr=False)
class _KeptPairs(RandomAccess[Features]):
    """Document i of one stream beside document i of the other.

    Attributes:
      sides: the streams; equally many documents.
    """

    sides: Mapping[str, TokenStream]

    def __len__(self) -> int:
        return len(self.sides["source"].starts)

    def item(self, index: int) -> Features:
        return {side: stream.document(index) for side, stream in self.sides.items()}

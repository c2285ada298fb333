# SPDX-License-Identifier: Apache-2.0
"""Tokens after those of a vocabulary: [MASK], and extra ones such as sentinels and registers."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from transformer_jax.tokenization.specials import MASK_PIECE
from transformer_jax.tokenization.subword_sampling import Resegmenter, resegmenter_of
from transformer_jax.tokenization.tokenizer import BaseTokenizer, Tokenizer, encode_plain


class ExtendedTokenizer(BaseTokenizer):
    """A `Tokenizer` with special tokens after those of another one.

    `encode` reads "[MASK]" in a text as the token. No text spells an extra token, whose piece is
    "⟨extra_0⟩" and so on; their ids are `specials.extra`. Decoding drops both.

    Args:
      base: the tokenizer of text.
      masks: add a token for the role `mask`.
      num_extra: number of extra tokens.
    """

    def __init__(self, base: Tokenizer, masks: bool, num_extra: int):
        first = base.vocab_size
        extra = tuple(range(first + masks, first + masks + num_extra))
        mask = first if masks else base.specials.mask
        self.base = base
        self.specials = replace(base.specials, mask=mask, extra=extra)
        self._added = [MASK_PIECE] * masks + [f"⟨extra_{i}⟩" for i in range(num_extra)]

    @property
    def vocab_size(self) -> int:
        return self.base.vocab_size + len(self._added)

    @property
    def resegmenter(self) -> Resegmenter | None:
        """As of the tokenizer of text; the tokens here stay."""
        return resegmenter_of(self.base)

    def encode(self, text: str) -> list[int]:
        if self._added[:1] != [MASK_PIECE]:
            return self.base.encode(text)
        first, *others = text.split(MASK_PIECE)
        ids = self.base.encode(first)
        for part in others:
            ids += [self.base.vocab_size, *self.base.encode(part)]
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text, with "[MASK]" encoded as ordinary characters."""
        return encode_plain(self.base, text)

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return self.base.encode_words(words)

    def decode(self, ids: Iterable[int]) -> str:
        return self.base.decode(i for i in ids if i < self.base.vocab_size)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        size = self.base.vocab_size
        return [self._added[i - size] if i >= size else self.base.pieces([i])[0] for i in ids]

    def starts_word(self, ids: Iterable[int]) -> list[bool]:
        size = self.base.vocab_size
        return self.base.starts_word([self.specials.eos if i >= size else i for i in ids])


def extended_content(suffix: str, content: bytes, masks: bool, num_extra: int) -> bytes:
    """Content of the file of an `ExtendedTokenizer`.

    Args:
      suffix: of the file of the tokenizer of text.
      content: that file.
    """
    tokenizer = {"suffix": suffix, "content": base64.b64encode(content).decode()}
    return json.dumps(tokenizer | {"masks": masks, "num_extra": num_extra}, indent=1).encode()


def load_extended(
    content: bytes, loaders: Mapping[str, Callable[[bytes], Tokenizer]]
) -> ExtendedTokenizer:
    """Loads an `ExtendedTokenizer`; `loaders` are those of the tokenizers of text, by suffix."""
    stored = json.loads(content)
    base = loaders[stored["suffix"]](base64.b64decode(stored["content"], validate=True))
    masks, num_extra = stored["masks"], stored["num_extra"]
    if not isinstance(masks, bool) or not isinstance(num_extra, int) or num_extra < 0:
        raise ValueError("masks or num_extra is no number of tokens")
    return ExtendedTokenizer(base, masks, num_extra)

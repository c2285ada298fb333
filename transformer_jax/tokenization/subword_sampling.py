# SPDX-License-Identifier: Apache-2.0
"""Subword regularization: each time that a text is trained on, its tokens are drawn again.

BPE-dropout (Provilkov et al. 2020) and unigram sampling (Kudo 2018), by `tokenizer.sampling`. Both
start from the tokens of the deterministic encoding, whose text they cut again word by word. So
normalization, unknown characters and special tokens are the library's in any case, and tokens can
be drawn from stored ones. The libraries' own samplers are not used: their random generators are
global, so that the tokens of an example would depend on what was encoded before it.
"""

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

SPACE = "▁"
"""Space in the pieces of sentencepiece."""

_MAX_WORD = 64
"""Characters from which on a word is cut in parts, between tokens: BPE takes quadratic time."""

_MAX_CACHED = 1 << 17
"""Words, or states of a word, whose possible tokens are kept; about 50 MB."""

StartsWord = Callable[[Sequence[str]], Sequence[bool]]
"""Pieces of adjacent tokens -> True for each that starts a word. Pieces never cross words."""


@dataclass(frozen=True)
class BpeDropout:
    """Byte-pair encoding that skips merges at random (Provilkov et al. 2020, algorithm 1).

    Attributes:
      ids: piece -> id.
      ranks: pair of pieces -> rank of its merge, the lowest first.
    """

    ids: Mapping[str, int]
    ranks: Mapping[tuple[str, str], int]

    @classmethod
    def from_scores(cls, ids: Mapping[str, int], scores: Mapping[str, float]) -> "BpeDropout":
        """BPE of sentencepiece: any two pieces merge whose text together is a piece, the highest
        score first."""
        ranks = {
            (piece[:i], piece[i:]): rank
            for rank, piece in enumerate(sorted(ids, key=lambda piece: -scores[piece]))
            for i in range(1, len(piece))
            if piece[:i] in ids and piece[i:] in ids
        }
        return cls(ids, ranks)

    def sample(self, word: str, rate: float, rng: random.Random) -> list[int]:
        """Token ids of a word. At each step each possible merge is dropped with probability `rate`,
        and the first of the others is made."""
        pieces = tuple(word)
        while True:
            for i in self._possible_merges(pieces):
                if rng.random() >= rate:
                    pieces = (*pieces[:i], pieces[i] + pieces[i + 1], *pieces[i + 2 :])
                    break
            else:
                return [self.ids[piece] for piece in pieces]

    @functools.cached_property
    def _possible_merges(self) -> Callable[[tuple[str, ...]], list[int]]:
        """Indices of the first pieces of all possible merges, in the order of their ranks."""
        # A cache of each instance: one on the method would keep all instances alive.
        return functools.lru_cache(_MAX_CACHED)(self._find_merges)

    def _find_merges(self, pieces: tuple[str, ...]) -> list[int]:
        pairs = enumerate(itertools.pairwise(pieces))
        return [
            i for _, i in sorted((self.ranks[pair], i) for i, pair in pairs if pair in self.ranks)
        ]


@dataclass(frozen=True)
class UnigramSampling:
    """Samples from a unigram language model of pieces (Kudo 2018, section 3.2).

    Attributes:
      ids: piece -> id.
      log_probs: piece -> log-probability.
    """

    ids: Mapping[str, int]
    log_probs: Mapping[str, float]

    def sample(self, word: str, rate: float, rng: random.Random) -> list[int]:
        """Token ids of a word. The probability of a segmentation x is proportional to P(x)^`rate`,
        the paper's alpha: forward filtering, backward sampling."""
        tokens: list[int] = []
        last_pieces = self._filtered(word, rate)
        end = len(word)
        while end:
            starts, weights = last_pieces[end]
            (start,) = rng.choices(starts, cum_weights=weights)
            tokens.append(self.ids[word[start:end]])
            end = start
        return tokens[::-1]

    @functools.cached_property
    def _filtered(self) -> Callable[[str, float], list[tuple[list[int], list[float]]]]:
        return functools.lru_cache(_MAX_CACHED)(self._filter)

    def _filter(self, word: str, rate: float) -> list[tuple[list[int], list[float]]]:
        """For each end of a beginning of the word the possible starts of its last piece, and their
        cumulative probabilities."""
        log_sums = [0.0]  # of the segmentations of each beginning
        last_pieces: list[tuple[list[int], list[float]]] = [([], [])]
        for end in range(1, len(word) + 1):
            log_weights = {
                start: log_sums[start] + rate * self.log_probs[word[start:end]]
                for start in range(max(0, end - self._longest), end)
                if word[start:end] in self.log_probs and log_sums[start] > -math.inf
            }
            # Relative to the largest: probabilities of long words would underflow.
            largest = max(log_weights.values(), default=-math.inf)
            weights = [math.exp(weight - largest) for weight in log_weights.values()]
            log_sums.append(largest + math.log(sum(weights)) if weights else largest)
            last_pieces.append(([*log_weights], [*itertools.accumulate(weights)]))
        return last_pieces

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self.ids))


@dataclass(frozen=True)
class Resegmenter:
    """Draws other tokens for the text of encoded tokens.

    Attributes:
      segmenter: cuts a word into tokens at random. Tokens that it does not know are kept.
      starts_word: finds the words.
    """

    segmenter: BpeDropout | UnigramSampling
    starts_word: StartsWord

    def __call__(self, ids: Iterable[int], rate: float, rng: np.random.Generator) -> list[int]:
        """Token ids of the same text, drawn at random.

        Args:
          ids: tokens of a text; special ones, unknown ones and bytes stay.
          rate: as `tokenizer.sampling`, more than 0.
          rng: draws the seed of the generator that draws tokens, a faster one for single numbers.
        """
        word_rng = random.Random(int(rng.integers(1 << 63)))
        tokens: list[int] = []
        for stays, group in itertools.groupby(map(int, ids), self._stays):
            if stays:
                tokens += group
                continue
            for word in self._words([self._pieces[i] for i in group]):
                tokens += self.segmenter.sample(word, rate, word_rng)
        return tokens

    @functools.cached_property
    def _pieces(self) -> dict[int, str]:
        return {i: piece for piece, i in self.segmenter.ids.items()}

    @functools.cached_property
    def _stays(self) -> Callable[[int], bool]:
        return functools.lru_cache(None)(self._is_kept)

    def _is_kept(self, token: int) -> bool:
        """True for a token that is no text, or that no merge makes: a symbol defined by a user."""
        piece = self._pieces.get(token)
        if piece is None or not isinstance(self.segmenter, BpeDropout):
            return piece is None
        is_known = all(character in self.segmenter.ids for character in piece)
        return not is_known or self.segmenter.sample(piece, 0.0, random.Random(0)) != [token]

    def _words(self, pieces: Sequence[str]) -> list[str]:
        words: list[str] = []
        for piece, starts in zip(pieces, self.starts_word(pieces), strict=True):
            if starts or not words or len(words[-1]) + len(piece) > _MAX_WORD:
                words.append(piece)
            else:
                words[-1] += piece
        return words


def starts_at_spaces(pieces: Sequence[str]) -> list[bool]:
    """Implements `StartsWord` for sentencepiece."""
    return [piece.startswith(SPACE) for piece in pieces]

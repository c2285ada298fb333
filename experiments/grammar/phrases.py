# SPDX-License-Identifier: Apache-2.0
"""Draws noun phrases, with determiners that fit noun and position."""

import random
from bisect import bisect
from collections.abc import Sequence
from functools import cache

from experiments.grammar.meaning import Gap, NounPhrase, Pair
from experiments.grammar.nouns import (
    ADJECTIVES,
    ALL,
    EVERY,
    NO,
    NOUNS,
    POSSESSIVES,
    PRONOUNS,
    QUANTITIES,
    THE,
    THIS,
    A,
)
from experiments.grammar.words import Adjective, Determiner, Noun, Pronoun

DEFINITE = (THE, THE, THE, THIS, *POSSESSIVES)
PLAIN = (*DEFINITE, A, A, A, A)  # without quantities, whose negation would be ambiguous
QUANTIFIED = (*PLAIN, *PLAIN, EVERY, ALL, *QUANTITIES)
FOR_SUBJECTS = (*QUANTIFIED, NO)  # as an object, `no` would be `not ... a`

_SUBJECT_PRONOUNS = (PRONOUNS[0], *PRONOUNS)  # `I` has its own verb forms
_PLURAL_ONLY = frozenset((ALL, *QUANTITIES))
_SINGULAR_ONLY = frozenset((EVERY, NO))
_WITHOUT_OWNER = frozenset(("man", "woman"))  # `my man` would be my husband
_WITH_MASS = frozenset((THE, A, *POSSESSIVES))


@cache
def _nouns_of(kinds: str) -> tuple[Noun, ...]:
    return tuple(noun for noun in NOUNS if noun.kind in kinds)


@cache
def _adjectives_of(kind: str) -> tuple[Adjective, ...]:
    return tuple(adjective for adjective in ADJECTIVES if kind in adjective.kinds)


def _fits(determiner: Determiner, noun: Noun) -> bool:
    if noun.mass:
        return determiner in _WITH_MASS
    return noun.english not in _WITHOUT_OWNER or determiner not in POSSESSIVES


class PhraseSampler:
    """Draws phrases, deterministically by `seed`; no noun twice until `start_sentence`."""

    def __init__(self, seed: int):
        self._random = random.Random(seed).random
        self._used: set[Noun] = set()

    def start_sentence(self) -> None:
        self._used.clear()

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick[T](self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def weighted[T](self, options: Sequence[T], bounds: Sequence[float]) -> T:
        """Draws one of `options` by cumulative shares."""
        return options[bisect(bounds, self._random() * bounds[-1])]

    def noun_phrase(self, kinds: str, determiners: Sequence[Determiner]) -> NounPhrase:
        """Draws a phrase with a noun of one of `kinds` and a fitting one of `determiners`."""
        noun = self._unused(kinds)
        determiner = self.pick(determiners)
        while not _fits(determiner, noun):
            determiner = self.pick(determiners)
        return NounPhrase(
            determiner,
            noun,
            plural=self._plural(noun, determiner),
            adjective=self.pick(_adjectives_of(noun.kind)) if self.chance(0.27) else None,
        )

    def subject(self, kinds: str, determiners: Sequence[Determiner]) -> NounPhrase | Pair | Pronoun:
        if "p" in kinds and self.chance(0.3):
            return self.pick(_SUBJECT_PRONOUNS)
        if "p" in kinds and self.chance(0.06):
            return Pair(self.noun_phrase("p", DEFINITE), self.noun_phrase("p", DEFINITE))
        return self.noun_phrase(kinds, determiners)

    def obj(
        self,
        kinds: str,
        determiners: Sequence[Determiner],
        subject: NounPhrase | Pair | Pronoun | Gap,
    ) -> NounPhrase | Pronoun:
        if "p" not in kinds or self.chance(0.8):
            return self.noun_phrase(kinds, determiners)
        pronoun = self.pick(PRONOUNS)
        # `I see us`, and `I see me` for `myself`
        while pronoun.first_person and isinstance(subject, Pronoun) and subject.first_person:
            pronoun = self.pick(PRONOUNS)
        return pronoun

    def _unused(self, kinds: str) -> Noun:
        options = _nouns_of(kinds)
        noun = self.pick(options)
        while noun in self._used:
            noun = self.pick(options)
        self._used.add(noun)
        return noun

    def _plural(self, noun: Noun, determiner: Determiner) -> bool:
        if noun.mass or determiner in _SINGULAR_ONLY:
            return False
        return determiner in _PLURAL_ONLY or self.chance(0.3)

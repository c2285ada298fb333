# SPDX-License-Identifier: Apache-2.0
"""Draws clauses: a verb, its complements, and matching adverbs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

from experiments.grammar.meaning import (
    Argument,
    Clause,
    Gap,
    NounPhrase,
    Pair,
    PrepositionalPhrase,
)
from experiments.grammar.nouns import ADJECTIVES
from experiments.grammar.particles import (
    COMPANIONS,
    EVERY_DAY,
    FOR,
    FREQUENCIES,
    GOALS,
    LOCATIONS,
    MANNERS,
    TIMES,
)
from experiments.grammar.phrases import (
    DEFINITE,
    FOR_SUBJECTS,
    PLAIN,
    QUANTIFIED,
    PhraseSampler,
)
from experiments.grammar.verbs import (
    ANIMAL_VERBS,
    BE,
    GIVING_VERBS,
    MODALS,
    MOTION_VERBS,
    OBJECT_VERBS,
    PLAIN_VERBS,
    SERVING_VERBS,
    WILL,
)
from experiments.grammar.words import (
    Adverb,
    Determiner,
    Modal,
    Preposition,
    Pronoun,
    Verb,
)

# families of verbs with their shares of clauses
_FAMILIES = (OBJECT_VERBS, GIVING_VERBS, PLAIN_VERBS, MOTION_VERBS, (BE,))
_SHARES = tuple(accumulate((0.56, 0.11, 0.14, 0.1, 0.09)))
_FOR_ANIMALS = tuple(verb for family in _FAMILIES for verb in family if verb.name in ANIMAL_VERBS)


@cache
def _times_in(tense: str, negated: bool) -> tuple[Adverb, ...]:
    """`not ... every day` is ambiguous."""
    return tuple(t for t in TIMES if tense in t.tenses and not (negated and t is EVERY_DAY))


@cache
def _verbs_with(kind: str) -> tuple[Verb, ...]:
    """Verbs whose object of `kind` can be relativized: not `whom I listen to`."""
    plain = (verb for verb in OBJECT_VERBS if not verb.government.english)
    return tuple(verb for verb in plain if kind in verb.kinds)


class ClauseSampler:
    """Draws clauses whose phrases come from `draw`."""

    def __init__(self, draw: PhraseSampler):
        self._draw = draw

    def clause(
        self,
        tense: str,
        *,
        determiners: Sequence[Determiner] = FOR_SUBJECTS,
        negation: float = 0.2,
        time: float = 0.15,
    ) -> Clause:
        """A clause in `tense`. `determiners`: of its subject; the numbers: probabilities."""
        verb = self._draw.pick(self._draw.weighted(_FAMILIES, _SHARES))
        negated = self._draw.chance(negation)
        determiners = PLAIN if negated else determiners
        if verb is BE:
            return self._predication(determiners, tense, negated, time)
        return self._clause(self.subject(verb, determiners), verb, tense, negated, time)

    def clause_about(self, subject: NounPhrase, tense: str) -> Clause:
        """A clause with a given subject, a person or an animal."""
        return self._clause(
            subject, self._verb_for(subject), tense, self._draw.chance(0.2), time=0.3
        )

    def relative_clause(self, phrase: NounPhrase) -> Clause:
        """A clause that describes `phrase`, its subject or its object left out."""
        gap, kind, past = Gap(phrase), phrase.noun.kind, self._draw.chance(0.35)
        if kind not in "pa" or self._draw.chance(0.4):
            verb = self._draw.pick(_verbs_with(kind))
            return Clause(self.subject(verb, PLAIN), verb, gap, past=past)
        verb, negated = self._verb_for(phrase), self._draw.chance(0.1)
        complements = self._complements(gap, verb, negated)
        return Clause(gap, verb, past=past, negated=negated, **complements)

    def subject(self, verb: Verb, determiners: Sequence[Determiner]) -> NounPhrase | Pair | Pronoun:
        return self._draw.subject("ppa" if verb.name in ANIMAL_VERBS else "p", determiners)

    def time(self, tense: str, negated: bool = False) -> Adverb:
        return self._draw.pick(_times_in(tense, negated))

    def _verb_for(self, subject: NounPhrase) -> Verb:
        if subject.noun.kind == "a":
            return self._draw.pick(_FOR_ANIMALS)
        return self._draw.pick(self._draw.weighted(_FAMILIES[:-1], _SHARES[:-1]))

    def _clause(
        self, subject: Argument, verb: Verb, tense: str, negated: bool, time: float
    ) -> Clause:
        return Clause(
            subject,
            verb,
            modal=self._modal(tense),
            past=tense == "past",
            negated=negated,
            **self._complements(subject, verb, negated),
            **self._manner(verb),
            **self._adverb(subject, tense, negated, time),
        )

    def _predication(
        self, determiners: Sequence[Determiner], tense: str, negated: bool, time: float
    ) -> Clause:
        """`The old book is expensive`: neither `the old book is old` nor `a book is old`."""
        predicate = self._draw.pick(ADJECTIVES)
        determiners = [determiner for determiner in determiners if determiner.definite]
        subject = self._draw.subject(predicate.kinds, determiners)
        if isinstance(subject, NounPhrase) and subject.adjective is predicate:
            subject = replace(subject, adjective=None)
        tense = "future" if tense == "modal" else tense
        # `hungry today`, but not `red today`
        passing = "t" not in predicate.kinds
        return Clause(
            subject,
            BE,
            predicate=predicate,
            modal=self._modal(tense),
            past=tense == "past",
            negated=negated,
            **(self._adverb(subject, tense, negated, time) if passing else {}),
        )

    def _modal(self, tense: str) -> Modal | None:
        if tense == "modal":
            return self._draw.pick(MODALS)
        return WILL if tense == "future" else None

    def _complements(self, subject: Argument, verb: Verb, negated: bool) -> dict[str, Any]:
        """Complements that the verb requires or allows, as fields of a clause."""
        if verb in MOTION_VERBS:
            return {"place": self._prepositional(GOALS, "l")}
        if verb in PLAIN_VERBS:
            return {"place": self._circumstance()}
        tied = verb.government.german
        negatable = DEFINITE if tied else PLAIN  # `nicht auf einen`, or `auf keinen`
        obj = self._draw.obj(verb.kinds, negatable if negated else QUANTIFIED, subject)
        if verb in GIVING_VERBS:
            return {"obj": obj, "recipient": self._draw.obj("p", DEFINITE, subject)}
        return {"obj": obj, "place": None if tied else self._attendant(verb, negated)}

    def _circumstance(self) -> PrepositionalPhrase | None:
        if self._draw.chance(0.5):
            return self._prepositional(LOCATIONS, "l")
        return self._prepositional(COMPANIONS, "p") if self._draw.chance(0.4) else None

    def _attendant(self, verb: Verb, negated: bool) -> PrepositionalPhrase | None:
        if verb.name in SERVING_VERBS and self._draw.chance(0.3):
            return self._prepositional((FOR,), "p")
        if negated or self._draw.chance(0.88):
            return None
        return self._prepositional(LOCATIONS, "l")

    def _prepositional(self, options: Sequence[Preposition], kinds: str) -> PrepositionalPhrase:
        return PrepositionalPhrase(self._draw.pick(options), self._draw.noun_phrase(kinds, PLAIN))

    def _manner(self, verb: Verb) -> dict[str, Adverb]:
        fits = verb in MOTION_VERBS or verb in PLAIN_VERBS
        return {"manner": self._draw.pick(MANNERS)} if fits and self._draw.chance(0.2) else {}

    def _adverb(
        self, subject: Argument, tense: str, negated: bool, time: float
    ) -> dict[str, Adverb]:
        """At most one adverb, of time with probability `time` or of frequency."""
        if self._draw.chance(time):
            return {"time": self.time(tense, negated)}
        recurs = tense in ("present", "past") and not negated and _may_recur(subject)
        if recurs and self._draw.chance(0.15):
            return {"frequency": self._draw.pick(FREQUENCIES)}
        return {}


def _may_recur(subject: Argument) -> bool:
    """Not with quantities (`every man never`), nor where a relative clause could take it."""
    if not isinstance(subject, NounPhrase):
        return True
    return subject.determiner in PLAIN and subject.relative is None

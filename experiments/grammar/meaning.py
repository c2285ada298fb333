# SPDX-License-Identifier: Apache-2.0
"""Meaning of a sentence; both languages are generated from it."""

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.grammar.words import (
    PLURAL,
    THIRD,
    Adjective,
    Adverb,
    Conjunction,
    Determiner,
    Modal,
    Noun,
    Preposition,
    Pronoun,
    Verb,
)


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A noun with determiner, adjective and relative clause."""

    determiner: Determiner
    noun: Noun
    plural: bool = False
    adjective: Adjective | None = None
    relative: "Clause | None" = None  # has a Gap where this phrase belongs

    @property
    def agreement(self) -> int:
        return PLURAL if self.plural else THIRD

    @property
    def gender(self) -> str:
        """Key of the German endings; the plural has one for all genders."""
        return "p" if self.plural else self.noun.gender


@dataclass(frozen=True, slots=True)
class Pair:
    """`first and second`, as a subject."""

    first: NounPhrase
    second: NounPhrase
    agreement: int = PLURAL


@dataclass(frozen=True, slots=True)
class Gap:
    """Gap in a relative clause: position of the noun phrase that it describes."""

    antecedent: NounPhrase

    @property
    def agreement(self) -> int:
        return self.antecedent.agreement


Argument = NounPhrase | Pair | Pronoun | Gap


@dataclass(frozen=True, slots=True)
class PrepositionalPhrase:
    """A preposition with a noun phrase."""

    preposition: Preposition
    phrase: NounPhrase


@dataclass(frozen=True, slots=True)
class Clause:
    """A verb with its arguments and adverbials; at most one of `modal` and `past`."""

    subject: Argument
    verb: Verb
    obj: NounPhrase | Pronoun | Gap | None = None
    recipient: NounPhrase | Pronoun | None = None
    predicate: Adjective | None = None
    place: PrepositionalPhrase | None = None  # or goal, companion, beneficiary
    modal: Modal | None = None
    past: bool = False
    negated: bool = False
    time: Adverb | None = None
    frequency: Adverb | None = None
    manner: Adverb | None = None
    fronted: str = ""  # the adverbial that opens a main clause: "time" or "place"

    def gap(self) -> Gap | None:
        gaps = (argument for argument in (self.subject, self.obj) if isinstance(argument, Gap))
        return next(gaps, None)


@dataclass(frozen=True, slots=True)
class Sentence:
    """One main clause, or two joined ones."""

    main: Clause
    conjunction: Conjunction | None = None
    other: Clause | None = None
    other_first: bool = False
    question: Adverb | None = None  # what opens it, if it is one

    def clauses(self) -> Iterator[Clause]:
        """All clauses, relative ones included."""
        for clause in filter(None, (self.main, self.other)):
            yield clause
            yield from (phrase.relative for phrase in noun_phrases(clause) if phrase.relative)

    def verb_object_pairs(self) -> set[tuple[str, str]]:
        """(verb, noun) by their English names, where the noun is the verb's object."""
        pairs = set()
        for clause in self.clauses():
            obj = clause.obj.antecedent if isinstance(clause.obj, Gap) else clause.obj
            if isinstance(obj, NounPhrase):
                pairs.add((clause.verb.name, obj.noun.english))
        return pairs

    def co_occurrences(self) -> set[tuple[str, str]]:
        """(verb, noun) for every verb and every noun of the sentence, in any relation."""
        clauses = list(self.clauses())
        nouns = {phrase.noun.english for clause in clauses for phrase in noun_phrases(clause)}
        return {(clause.verb.name, noun) for clause in clauses for noun in nouns}


def noun_phrases(clause: Clause) -> Iterator[NounPhrase]:
    """Noun phrases of a clause, without those inside relative clauses."""
    place = clause.place.phrase if clause.place else None
    for argument in (clause.subject, clause.obj, clause.recipient, place):
        if isinstance(argument, Pair):
            yield argument.first
            yield argument.second
        elif isinstance(argument, NounPhrase):
            yield argument

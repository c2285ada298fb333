# SPDX-License-Identifier: Apache-2.0
"""Draws meanings that are natural and unambiguous in both languages."""

from dataclasses import replace
from itertools import accumulate

from experiments.grammar.clauses import ClauseSampler
from experiments.grammar.meaning import Clause, Sentence
from experiments.grammar.particles import (
    ADVERBIAL,
    AND,
    BUT,
    LOCATIONS,
    THAT,
    WHETHER,
    WHY,
    YES_NO,
)
from experiments.grammar.phrases import FOR_SUBJECTS, PLAIN, PhraseSampler
from experiments.grammar.verbs import ASK, OBJECT_VERBS, SAYING_VERBS
from experiments.grammar.words import Conjunction

_NON_PAST = ("present", "present", "modal", "future")
_TENSES = (*_NON_PAST, "past", "past")
_UNSPLIT_VERBS = tuple(verb for verb in OBJECT_VERBS if not verb.prefix)


class MeaningSampler:
    """Endless source of meanings, deterministic by `seed`; no noun occurs twice in one."""

    def __init__(self, seed: int):
        self._draw = PhraseSampler(seed)
        self._clauses = ClauseSampler(self._draw)

    def sentence(self) -> Sentence:
        self._draw.start_sentence()
        return self._draw.weighted(self._PLANS, self._SHARES)(self)

    def _simple(self) -> Sentence:
        clause = self._clauses.clause(self._draw.pick(_TENSES), time=0.35)
        return Sentence(self._with_front(clause) if self._draw.chance(0.5) else clause)

    def _question(self) -> Sentence:
        word = self._draw.pick((WHY, YES_NO))
        tense = self._draw.pick([tense for tense in _TENSES if tense in word.tenses])
        clause = self._clauses.clause(tense, determiners=PLAIN, negation=0.0)
        return Sentence(clause, question=word)

    def _relative_on_subject(self) -> Sentence:
        phrase = self._draw.noun_phrase("pppa", PLAIN)
        subject = replace(phrase, relative=self._clauses.relative_clause(phrase))
        clause = self._clauses.clause_about(subject, self._draw.pick(_TENSES))
        return Sentence(self._with_front(clause) if self._draw.chance(0.3) else clause)

    def _relative_on_object(self) -> Sentence:
        """Relative clause on the object, which ends the main clause, so the two are adjacent."""
        verb = self._draw.pick(_UNSPLIT_VERBS)
        phrase = self._draw.noun_phrase(verb.kinds, PLAIN)
        subject = self._clauses.subject(verb, FOR_SUBJECTS)
        obj = replace(phrase, relative=self._clauses.relative_clause(phrase))
        if self._draw.chance(0.3):
            time = self._clauses.time("present")
            return Sentence(Clause(subject, verb, obj, time=time, fronted="time"))
        return Sentence(Clause(subject, verb, obj))

    def _subordinate(self) -> Sentence:
        return self._joined(self._draw.pick(ADVERBIAL), other_first=self._draw.chance(0.45))

    def _coordinate(self) -> Sentence:
        return self._joined(self._draw.pick((AND, BUT)), other_first=False)

    def _joined(self, conjunction: Conjunction, other_first: bool) -> Sentence:
        tense = self._draw.pick(_TENSES if "past" in conjunction.tenses else _NON_PAST)
        main = self._clauses.clause(tense)
        return Sentence(main, conjunction, self._sequel(tense, conjunction), other_first)

    def _reported(self) -> Sentence:
        asks = self._draw.chance(0.25)
        conjunction, verb = (WHETHER, ASK) if asks else (THAT, self._draw.pick(SAYING_VERBS))
        past, negated = self._draw.chance(0.4), self._draw.chance(0.15)
        subject = self._clauses.subject(verb, PLAIN if negated else FOR_SUBJECTS)
        main = Clause(subject, verb, past=past, negated=negated)
        return Sentence(main, conjunction, self._sequel("past" if past else "present", conjunction))

    def _sequel(self, tense: str, conjunction: Conjunction) -> Clause:
        """Second clause, joined to one in `tense`: past with past."""
        if tense != "past":
            tense = self._draw.pick([tense for tense in _NON_PAST if tense in conjunction.tenses])
        return self._clauses.clause(tense, negation=0.2 if conjunction.negatable else 0.0)

    def _with_front(self, clause: Clause) -> Clause:
        """Fronts an adverbial of the clause, if one can be fronted."""
        if clause.time:
            return replace(clause, fronted="time")
        located = clause.place and clause.place.preposition in LOCATIONS
        return replace(clause, fronted="place") if located else clause

    _PLANS = (
        _simple,
        _question,
        _relative_on_subject,
        _relative_on_object,
        _subordinate,
        _coordinate,
        _reported,
    )
    _SHARES = tuple(accumulate((0.45, 0.08, 0.11, 0.09, 0.14, 0.04, 0.09)))

# SPDX-License-Identifier: Apache-2.0
"""English: agreement, do-support, a and an, position of adverbs."""

from experiments.grammar.meaning import (
    Argument,
    Clause,
    Gap,
    NounPhrase,
    Pair,
    PrepositionalPhrase,
    Sentence,
)
from experiments.grammar.verbs import BE, DO_PRESENT
from experiments.grammar.words import Adverb, Pronoun

Words = list[str]


def english(sentence: Sentence) -> str:
    """Returns the sentence in English, capitalized and punctuated."""
    main = _clause(sentence.main, question=sentence.question)
    words = main
    if sentence.other:
        other = [sentence.conjunction.english, *_clause(sentence.other)]
        if sentence.other_first:
            words = [*other, ",", *main]
        else:
            words = [*main, *("," * sentence.conjunction.english_comma), *other]
    text = " ".join(filter(None, words)).replace(" ,", ",")
    return text[0].upper() + text[1:] + ("?" if sentence.question else ".")


def _clause(clause: Clause, question: Adverb | None = None) -> Words:
    finite, rest = _verb_group(clause, is_question=question is not None)
    frequency = [clause.frequency.english] if clause.frequency else []
    subject = _argument(clause.subject)
    if question:
        verbs = [question.english, finite, *subject, *frequency, *rest]
    elif _has_auxiliary(clause):
        verbs = [*subject, *_negate(finite, clause.negated), *frequency, *rest]
    else:
        verbs = [*subject, *frequency, finite, *rest]
    adverbials = {
        "place": _prepositional(clause.place) if clause.place else [],
        "time": [clause.time.english] if clause.time else [],
    }
    front = adverbials.pop(clause.fronted, [])
    predicate = [clause.predicate.english] if clause.predicate else []
    manner = [clause.manner.english] if clause.manner else []
    return [
        *front,
        *_relative_pronoun(clause),
        *verbs,
        *predicate,
        *_objects(clause),
        *manner,
        *(word for adverbial in adverbials.values() for word in adverbial),
    ]


def _has_auxiliary(clause: Clause) -> bool:
    modal = clause.modal
    return clause.negated or (modal.is_auxiliary if modal else clause.verb is BE)


def _verb_group(clause: Clause, is_question: bool) -> tuple[str, Words]:
    """Finite verb, and the verbs after it (after `not`, and after the subject of a question)."""
    verb, modal, agreement = clause.verb, clause.modal, clause.subject.agreement
    if modal:
        finite, base = modal.english, modal.english[0]
        rest = [*modal.linking, verb.english]
        needs_do = not modal.is_auxiliary
    else:
        finite, base = verb.english_past if clause.past else verb.english_present, verb.english
        rest = []
        needs_do = verb is not BE
    if needs_do and (clause.negated or is_question):
        return "did" if clause.past else DO_PRESENT[agreement], [base, *rest]
    return finite[agreement], rest


def _negate(finite: str, negated: bool) -> Words:
    if not negated:
        return [finite]
    return ["cannot"] if finite == "can" else [finite, "not"]


def _objects(clause: Clause) -> Words:
    recipient = _argument(clause.recipient, is_object=True) if clause.recipient else []
    obj = _argument(clause.obj, is_object=True) if clause.obj else []
    preposition = clause.verb.government.english if clause.obj else ""
    return [*recipient, preposition, *obj, clause.verb.particle]


def _argument(argument: Argument, is_object: bool = False) -> Words:
    match argument:
        case Gap():
            return []
        case Pronoun():
            return [argument.english_object if is_object else argument.english]
        case Pair():
            return [*_noun_phrase(argument.first), "and", *_noun_phrase(argument.second)]
        case NounPhrase():
            return _noun_phrase(argument)


def _noun_phrase(phrase: NounPhrase) -> Words:
    noun, determiner = phrase.noun, phrase.determiner
    article = determiner.english_plural if phrase.plural or noun.mass else determiner.english
    adjective = phrase.adjective.english if phrase.adjective else ""
    name = noun.english_plural if phrase.plural else noun.english
    if article == "a" and (adjective or name)[0] in "aeiou":
        article = "an"
    relative = _clause(phrase.relative) if phrase.relative else []
    return [article, adjective, name, *relative]


def _prepositional(phrase: PrepositionalPhrase) -> Words:
    return [phrase.preposition.english, *_noun_phrase(phrase.phrase)]


def _relative_pronoun(clause: Clause) -> Words:
    gap = clause.gap()
    if gap is None:
        return []
    if gap.antecedent.noun.kind != "p":
        return ["that"]
    return ["who" if clause.subject is gap else "whom"]

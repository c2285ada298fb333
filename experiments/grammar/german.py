# SPDX-License-Identifier: Apache-2.0
"""German: gender, case, adjective endings, separable verbs and word order.

A clause is built by its topological fields: [front] finite verb [middle] right bracket, where the
bracket has the particle, participle or infinitive. A verb-final clause moves the finite verb after
the bracket, which rejoins a separable verb: `ruft ... an`, `..., weil ... anruft`.
"""

from experiments.grammar.meaning import (
    Argument,
    Clause,
    Gap,
    NounPhrase,
    Pair,
    PrepositionalPhrase,
    Sentence,
)
from experiments.grammar.nouns import ADJECTIVE_ENDINGS, BARE, NO, THE, A
from experiments.grammar.particles import CONTRACTIONS
from experiments.grammar.verbs import PERFECT
from experiments.grammar.words import Determiner, Preposition, Pronoun

Words = list[str]


def german(sentence: Sentence) -> str:
    """Returns the sentence in German, capitalized and punctuated."""
    conjunction, other = sentence.conjunction, []
    if sentence.other:
        order = _verb_final if conjunction.subordinating else _main
        other = [conjunction.german, *order(sentence.other)]
    if sentence.question:
        words = _verb_second(sentence.main, [sentence.question.german])
    elif sentence.other_first:
        words = _verb_second(sentence.main, [*other, ","])
    else:
        comma = other and conjunction.german_comma
        words = [*_main(sentence.main), *("," * bool(comma)), *other]
    text = " ".join(filter(None, words)).replace(" ,", ",").rstrip(",")
    return text[0].upper() + text[1:] + ("?" if sentence.question else ".")


def _main(clause: Clause) -> Words:
    """Main clause; the fronted adverbial comes first, else the subject."""
    if clause.fronted == "time":
        return _verb_second(clause, [clause.time.german])
    if clause.fronted == "place":
        return _verb_second(clause, _prepositional(clause.place))
    finite, bracket = _verb_complex(clause)
    return [*_argument(clause.subject, "nom"), finite, *_middle(clause), *bracket]


def _verb_second(clause: Clause, front: Words) -> Words:
    """Verb-second clause: `front` (empty in a yes-no question), verb, subject."""
    finite, bracket = _verb_complex(clause)
    return [*front, finite, *_argument(clause.subject, "nom"), *_middle(clause), *bracket]


def _verb_final(clause: Clause) -> Words:
    finite, bracket = _verb_complex(clause)
    if bracket == [clause.verb.prefix]:
        bracket, finite = [], clause.verb.prefix + finite
    return [*_argument(clause.subject, "nom"), *_middle(clause), *bracket, finite]


def _verb_complex(clause: Clause) -> tuple[str, Words]:
    """Finite verb and right bracket."""
    verb, agreement = clause.verb, clause.subject.agreement
    if clause.modal:
        return clause.modal.german[agreement], [verb.prefix + verb.german]
    if clause.past and verb.german_past:
        return verb.german_past[agreement], []
    if clause.past:
        return PERFECT[verb.auxiliary][agreement], [verb.participle]
    return verb.german_present[agreement], [verb.prefix]


def _middle(clause: Clause) -> Words:
    """Middle field without the subject.

    Recipient and definite objects come before adverbs and `nicht`, indefinite objects after them;
    prepositional phrases and predicates come last. An indefinite object is negated by `kein`.
    """
    early, late, tied = _objects(clause)
    negation = ["nicht"] if clause.negated and not _takes_kein(clause) else []
    return [
        *early,
        *_adverb(clause),
        *negation,
        *late,
        *([clause.manner.german] if clause.manner else []),
        *tied,
        *(_prepositional(clause.place) if clause.place and clause.fronted != "place" else []),
        *([clause.predicate.german] if clause.predicate else []),
    ]


def _adverb(clause: Clause) -> Words:
    time = clause.time if clause.fronted != "time" else None
    return [adverb.german for adverb in (time, clause.frequency) if adverb]


def _objects(clause: Clause) -> tuple[Words, Words, Words]:
    """Objects before the adverbs, after them, and after a preposition."""
    early = _argument(clause.recipient, "dat") if clause.recipient else []
    obj = clause.obj
    if obj is None:
        return early, [], []
    government = clause.verb.government
    if government.german:
        return early, [], _tie(government, obj)
    words = _argument(obj, government.case, negated=clause.negated)
    if isinstance(obj, NounPhrase) and not obj.determiner.definite:
        return early, words, []
    return early + words, [], []


def _takes_kein(clause: Clause) -> bool:
    obj = clause.obj
    return isinstance(obj, NounPhrase) and obj.determiner is A


def _argument(argument: Argument, case: str, negated: bool = False) -> Words:
    match argument:
        case Gap():
            return []
        case Pronoun():
            return [argument.german[case]]
        case Pair():
            return [
                *_noun_phrase(argument.first, case),
                "und",
                *_noun_phrase(argument.second, case),
            ]
        case NounPhrase():
            return _noun_phrase(argument, case, negated)


def _noun_phrase(phrase: NounPhrase, case: str, negated: bool = False) -> Words:
    form = f"{case} {phrase.gender}"
    determiner = _determiner(phrase, negated)
    words = [determiner.german[form]]
    if phrase.adjective:
        words.append(phrase.adjective.stem + ADJECTIVE_ENDINGS[determiner.declension][form])
    words.append(_noun(phrase, case))
    if phrase.relative:
        words += [",", *_relative(phrase), ","]
    return words


def _determiner(phrase: NounPhrase, negated: bool) -> Determiner:
    if phrase.determiner is not A:
        return phrase.determiner
    if negated:
        return NO
    return BARE if phrase.plural or phrase.noun.mass else A


def _noun(phrase: NounPhrase, case: str) -> str:
    noun = phrase.noun
    if not phrase.plural:
        return noun.german_plural if noun.weak and case != "nom" else noun.german
    takes_n = case == "dat" and not noun.german_plural.endswith(("n", "s"))
    return noun.german_plural + "n" * takes_n


def _relative(phrase: NounPhrase) -> Words:
    clause = phrase.relative
    case = "nom" if isinstance(clause.subject, Gap) else clause.verb.government.case
    form = f"{case} {phrase.gender}"
    pronoun = "denen" if form == "dat p" else THE.german[form]
    return [pronoun, *_verb_final(clause)]


def _tie(preposition: Preposition, argument: Argument) -> Words:
    first, *rest = _argument(argument, preposition.case)
    contraction = None
    if isinstance(argument, NounPhrase) and argument.determiner is THE:
        contraction = CONTRACTIONS.get((preposition.german, first))
    return [contraction, *rest] if contraction else [preposition.german, first, *rest]


def _prepositional(phrase: PrepositionalPhrase) -> Words:
    return _tie(phrase.preposition, phrase.phrase)

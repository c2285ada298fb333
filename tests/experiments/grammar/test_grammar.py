# SPDX-License-Identifier: Apache-2.0
"""No sentence of the grammar is ambiguous. (Which it writes: test_write.py.)"""

from experiments.grammar import nouns, verbs
from experiments.grammar.english import english
from experiments.grammar.german import german
from experiments.grammar.meaning import Clause, NounPhrase, Sentence
from experiments.grammar.sampling import MeaningSampler

NOUN = {noun.english: noun for noun in nouns.NOUNS}
PRONOUN = {pronoun.english: pronoun for pronoun in nouns.PRONOUNS}
MODALS = (*verbs.MODALS, verbs.WILL)
SEE = next(verb for verb in verbs.OBJECT_VERBS if verb.name == "see")


def assert_one_translation_each(meanings):
    translations = {}
    for meaning in meanings:
        target = german(meaning)
        assert translations.setdefault(english(meaning), target) == target


def test_translation_is_a_function_of_drawn_sentences():
    """On the raw stream, where the removal of duplicates cannot hide a second translation."""
    sampler = MeaningSampler(seed=5)
    assert_one_translation_each(sampler.sentence() for _ in range(5_000))


def test_no_verb_form_is_ambiguous():
    """`they read`, present or past, would be; or one English verb for two German ones."""
    tenses = [{}, {"past": True}, *({"modal": modal} for modal in MODALS)]
    families = (*verbs.OBJECT_VERBS, *verbs.GIVING_VERBS, *verbs.PLAIN_VERBS)
    dogs = [NounPhrase(determiner, NOUN["dog"], False) for determiner in (nouns.THE, nouns.A)]
    assert_one_translation_each(
        Sentence(Clause(subject, verb, obj, **tense))
        for verb in (*families, *verbs.MOTION_VERBS, *verbs.SAYING_VERBS)
        for obj in (dogs if verb.kinds else (None,))
        for subject in (PRONOUN["I"], PRONOUN["he"], PRONOUN["they"])
        for tense in tenses
    )


def test_no_noun_phrase_is_ambiguous():
    """`the fish`, singular or plural, would be."""
    determiners = (nouns.THE, nouns.A, nouns.THIS, *nouns.POSSESSIVES)
    assert_one_translation_each(
        Sentence(Clause(PRONOUN["I"], SEE, NounPhrase(determiner, noun, plural, adjective)))
        for determiner in determiners
        for noun in nouns.NOUNS
        for plural in ((False,) if noun.mass else (False, True))
        for adjective in (None, *nouns.ADJECTIVES)
    )

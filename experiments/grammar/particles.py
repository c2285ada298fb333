# SPDX-License-Identifier: Apache-2.0
"""Prepositions, adverbials and conjunctions."""

from experiments.grammar.words import Adverb, Conjunction, Preposition

LOCATIONS = (
    Preposition("in", "in", "dat"),
    Preposition("behind", "hinter", "dat"),
    Preposition("in front of", "vor", "dat"),
    Preposition("next to", "neben", "dat"),
)
GOALS = (
    Preposition("into", "in", "acc"),
    Preposition("to", "zu", "dat"),
    Preposition("through", "durch", "acc"),
    Preposition("out of", "aus", "dat"),
)
COMPANIONS = (Preposition("with", "mit", "dat"), Preposition("without", "ohne", "acc"))
FOR = Preposition("for", "für", "acc")
CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("von", "dem"): "vom",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}


def _tenses(text: str) -> frozenset[str]:
    return frozenset(text.split())


WHY = Adverb("why", "warum", _tenses("present past future modal"))
# in the present a yes-no question could start with any verb, capitalized
YES_NO = Adverb("", "", _tenses("past future modal"))

EVERY_DAY = Adverb("every day", "jeden Tag", _tenses("present past modal"))
TIMES = (
    EVERY_DAY,
    *(
        Adverb(english, german, _tenses(tenses))
        for english, german, tenses in (
            ("today", "heute", "present past future modal"),
            ("now", "jetzt", "present modal"),
            ("yesterday", "gestern", "past"),
            ("tomorrow", "morgen", "future modal"),
            ("soon", "bald", "future"),
            ("in the morning", "am Morgen", "present past future modal"),
            ("in the evening", "am Abend", "present past future modal"),
            ("at night", "in der Nacht", "present past modal"),
            ("on Monday", "am Montag", "past future modal"),
            ("on Sunday", "am Sonntag", "past future modal"),
            ("in summer", "im Sommer", "present past"),
            ("in winter", "im Winter", "present past"),
            ("this week", "diese Woche", "past future modal"),
            ("last week", "letzte Woche", "past"),
            ("next week", "nächste Woche", "future modal"),
            ("last year", "letztes Jahr", "past"),
            ("next year", "nächstes Jahr", "future"),
        )
    ),
)
FREQUENCIES = tuple(
    Adverb(english, german, _tenses("present past"))
    for english, german in (
        ("often", "oft"),
        ("always", "immer"),
        ("sometimes", "manchmal"),
        ("rarely", "selten"),
        ("never", "nie"),
    )
)
MANNERS = tuple(
    Adverb(english, german, _tenses("present past future modal"))
    for english, german in (
        ("slowly", "langsam"),
        ("quickly", "schnell"),
        ("quietly", "leise"),
        ("loudly", "laut"),
    )
)

_ANY = _tenses("present past future modal")
AND = Conjunction("and", "und", False, _ANY, english_comma=True, german_comma=False)
BUT = Conjunction("but", "aber", False, _ANY, english_comma=True)
THAT = Conjunction("that", "dass", True, _ANY)
WHETHER = Conjunction("whether", "ob", True, _ANY)
ADVERBIAL = (
    Conjunction("because", "weil", True, _ANY),
    Conjunction("although", "obwohl", True, _ANY),
    Conjunction("while", "während", True, _tenses("present past"), negatable=False),
    Conjunction("before", "bevor", True, _tenses("present past"), negatable=False),
    Conjunction("if", "wenn", True, _tenses("present")),
    Conjunction("as soon as", "sobald", True, _tenses("present"), negatable=False),
)

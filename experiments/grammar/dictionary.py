# SPDX-License-Identifier: Apache-2.0
"""The dictionary of the word-for-word baseline, which knows no grammar."""

from experiments.grammar.nouns import ADJECTIVES, NOUNS, PRONOUNS
from experiments.grammar.particles import ADVERBIAL, FREQUENCIES, MANNERS, TIMES
from experiments.grammar.verbs import (
    BE,
    GIVING_VERBS,
    MOTION_VERBS,
    OBJECT_VERBS,
    PLAIN_VERBS,
    SAYING_VERBS,
)

# for words with several forms the most frequent one
_FUNCTION_WORDS = """
    the die  a ein  an ein  this dieser  these diese  every jeder  all alle  no kein  not nicht
    my mein  his sein  her ihr  our unser  many viele  some einige  two zwei  three drei
    why warum  and und  but aber  that dass  whether ob  as sobald  who der  whom den
    can kann  cannot kann  should sollte  will wird  want wollen  wants will  have haben  has muss
    had musste  allowed darf  do tun  does tut  did hat  to zu  be sein
    in in  into in  on am  at an  of von  for für  with mit  without ohne  about über  after auf
    behind hinter  front vor  next neben  through durch  out aus
    up auf  along mit  away weg  asleep ein
    day Tag  morning Morgen  evening Abend  night Nacht  summer Sommer  winter Winter
    week Woche  year Jahr  last letzte  Monday Montag  Sunday Sonntag
"""


def entries() -> dict[str, str]:
    """English form -> German form; the last entry wins for equal forms."""
    found = {}
    for verb in (*SAYING_VERBS, *MOTION_VERBS, *PLAIN_VERBS, *GIVING_VERBS, *OBJECT_VERBS, BE):
        past = verb.german_past or (verb.participle,) * 3
        found |= zip(verb.english_past, past, strict=True)
        found |= zip(verb.english_present, verb.german_present, strict=True)
    for noun in NOUNS:
        found |= {noun.english_plural: noun.german_plural, noun.english: noun.german}
    found |= {adjective.english: adjective.stem + "e" for adjective in ADJECTIVES}
    for pronoun in PRONOUNS:
        found |= {pronoun.english_object: pronoun.german["acc"]}
        found |= {pronoun.english.lower(): pronoun.german["nom"]}
    for word in (*TIMES, *FREQUENCIES, *MANNERS, *ADVERBIAL):
        found |= {word.english: word.german}
    del found[""]  # nouns without a plural
    cells = _FUNCTION_WORDS.split()
    return found | dict(zip(cells[::2], cells[1::2], strict=True))

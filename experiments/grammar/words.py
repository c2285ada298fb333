# SPDX-License-Identifier: Apache-2.0
"""Word classes of the grammar, and the parsing of table rows.

Verbs and adjectives select nouns by kind, a single letter: p person, a animal,
r to read, t thing, c clothes, o to open, f food, d drink, v vehicle, l place. Cases are nom, acc
and dat.
"""

from dataclasses import dataclass

Forms = tuple[str, str, str]  # first person singular, third person singular, plural
FIRST, THIRD, PLURAL = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun with plurals and German gender."""

    english: str
    english_plural: str  # empty: a mass noun, which has neither plural nor `a`
    german: str
    german_plural: str
    gender: str  # m, f, n
    kind: str
    weak: bool = False  # n-declension: der Junge, den Jungen

    @property
    def mass(self) -> bool:
        return not self.english_plural


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective, with the stem of its German endings."""

    english: str
    german: str
    stem: str  # stem of the endings: teuer, but teur-e
    kinds: str  # of the nouns it describes


@dataclass(frozen=True, slots=True, eq=False)
class Determiner:
    """An article or another determiner; an empty form leaves the noun bare.

    `declension` of a following adjective: weak, mixed or strong. `definite` objects come before
    adverbs and `nicht`, others after them.
    """

    english: str
    english_plural: str
    german: dict[str, str]  # by case and gender, such as "acc m"; the plural counts as a gender: p
    declension: str
    definite: bool


@dataclass(frozen=True, slots=True, eq=False)
class Pronoun:
    """A personal pronoun with its verb form."""

    english: str
    english_object: str
    german: dict[str, str]  # by case
    agreement: int  # index into Forms
    first_person: bool


@dataclass(frozen=True, slots=True)
class Preposition:
    """A preposition; an empty word means a bare noun phrase in that language."""

    english: str
    german: str
    case: str


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb in both languages, with forms and complements."""

    name: str  # base form with preposition: `look for` is not `look at`
    english: str  # base form
    english_present: Forms
    english_past: Forms
    particle: str  # throws the book `away`
    prefix: str  # wirft das Buch `weg`
    german: str  # infinitive without the prefix
    german_present: Forms
    german_past: Forms | None  # if the simple past is usual; otherwise the perfect
    participle: str
    auxiliary: str  # hat, ist
    government: Preposition  # of the object
    kinds: str  # of the object


@dataclass(frozen=True, slots=True, eq=False)
class Modal:
    """A modal verb, or its English equivalent."""

    english: Forms
    is_auxiliary: bool  # `can see`, `is allowed to see`; otherwise with do-support: `wants to see`
    linking: tuple[str, ...]  # the words between the finite form and the infinitive
    german: Forms
    tense: str = "modal"


@dataclass(frozen=True, slots=True, eq=False)
class Adverb:
    """An adverb with its tenses."""

    english: str
    german: str
    tenses: frozenset[str]  # allowed with: present, past, future, modal


@dataclass(frozen=True, slots=True, eq=False)
class Conjunction:
    """A conjunction, with the German word order that it requires."""

    english: str
    german: str
    subordinating: bool  # verb-final in German; otherwise verb-second
    tenses: frozenset[str]  # of its clause
    negatable: bool = True  # whether that clause may be negated: not `before ... not`
    english_comma: bool = False
    german_comma: bool = True


def table(text: str) -> list[list[str]]:
    """Parses rows of whitespace-separated cells; `-` is an empty cell."""
    lines = text.strip().splitlines()
    return [["" if cell == "-" else cell for cell in line.split()] for line in lines]

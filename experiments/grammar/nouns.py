# SPDX-License-Identifier: Apache-2.0
"""Nouns, adjectives, determiners and pronouns.

Every English form has one German counterpart in its construction, so that translation is a
function. Nouns that would break this are left out, such as `fish` (singular or plural).
"""

from experiments.grammar.words import (
    FIRST,
    PLURAL,
    THIRD,
    Adjective,
    Determiner,
    Noun,
    Pronoun,
    table,
)

GENDERS = ("m", "f", "n", "p")


def endings(nom: str, acc: str, dat: str) -> dict[str, str]:
    """Parses {"nom m": ..., ...} from one row per case of the endings m f n p; `-`: none."""
    return {
        f"{case} {gender}": ending.strip("-")
        for case, row in (("nom", nom), ("acc", acc), ("dat", dat))
        for gender, ending in zip(GENDERS, row.split(), strict=True)
    }


ADJECTIVE_ENDINGS = {
    "weak": endings("e e e en", "en e e en", "en en en en"),
    "mixed": endings("er e es en", "en e es en", "en en en en"),
    "strong": endings("er e es e", "en e es e", "em er em en"),
}


def _nouns(kind: str, text: str) -> list[Noun]:
    return [Noun(*row[:5], kind, weak=row[5:] == ["weak"]) for row in table(text)]


NOUNS = (
    *_nouns(
        "p",
        """
        man       men        Mann       Männer     m
        woman     women      Frau       Frauen     f
        child     children   Kind       Kinder     n
        boy       boys       Junge      Jungen     m weak
        girl      girls      Mädchen    Mädchen    n
        teacher   teachers   Lehrer     Lehrer     m
        doctor    doctors    Arzt       Ärzte      m
        friend    friends    Freund     Freunde    m
        neighbour neighbours Nachbar    Nachbarn   m weak
        student   students   Student    Studenten  m weak
        brother   brothers   Bruder     Brüder     m
        sister    sisters    Schwester  Schwestern f
        uncle     uncles     Onkel      Onkel      m
        daughter  daughters  Tochter    Töchter    f
        farmer    farmers    Bauer      Bauern     m weak
        king      kings      König      Könige     m
        queen     queens     Königin    Königinnen f
        """,
    ),
    *_nouns(
        "a",
        """
        dog   dogs   Hund    Hunde    m
        cat   cats   Katze   Katzen   f
        horse horses Pferd   Pferde   n
        bird  birds  Vogel   Vögel    m
        cow   cows   Kuh     Kühe     f
        pig   pigs   Schwein Schweine n
        bear  bears  Bär     Bären    m weak
        """,
    ),
    *_nouns(
        "r",
        """
        book      books      Buch       Bücher      n
        letter    letters    Brief      Briefe      m
        poem      poems      Gedicht    Gedichte    n
        story     stories    Geschichte Geschichten f
        novel     novels     Roman      Romane      m
        """,
    ),
    *_nouns(
        "t",
        """
        table    tables    Tisch     Tische    m
        lamp     lamps     Lampe     Lampen    f
        picture  pictures  Bild      Bilder    n
        key      keys      Schlüssel Schlüssel m
        clock    clocks    Uhr       Uhren     f
        ball     balls     Ball      Bälle     m
        cup      cups      Tasse     Tassen    f
        """,
    ),
    *_nouns(
        "c",
        """
        coat  coats   Mantel  Mäntel  m
        hat   hats    Hut     Hüte    m
        dress dresses Kleid   Kleider n
        bag   bags    Tasche  Taschen f
        """,
    ),
    *_nouns(
        "o",
        """
        door     doors     Tür     Türen   f
        window   windows   Fenster Fenster n
        box      boxes     Kiste   Kisten  f
        """,
    ),
    *_nouns(
        "f",
        """
        apple  apples   Apfel     Äpfel      m
        egg    eggs     Ei        Eier       n
        pear   pears    Birne     Birnen     f
        cake   cakes    Kuchen    Kuchen     m
        bread  -        Brot      -          n
        cheese -        Käse      -          m
        """,
    ),
    *_nouns(
        "d",
        """
        water  - Wasser - n
        milk   - Milch  - f
        coffee - Kaffee - m
        tea    - Tee    - m
        juice  - Saft   - m
        """,
    ),
    *_nouns(
        "v",
        """
        car     cars     Auto    Autos      n
        bus     buses    Bus     Busse      m
        train   trains   Zug     Züge       m
        """,
    ),
    *_nouns(
        "l",
        """
        garden  gardens   Garten     Gärten      m
        house   houses    Haus       Häuser      n
        school  schools   Schule     Schulen     f
        park    parks     Park       Parks       m
        city    cities    Stadt      Städte      f
        church  churches  Kirche     Kirchen     f
        kitchen kitchens  Küche      Küchen      f
        forest  forests   Wald       Wälder      m
        library libraries Bibliothek Bibliotheken f
        hotel   hotels    Hotel      Hotels      n
        village villages  Dorf       Dörfer      n
        """,
    ),
)

ADJECTIVES = tuple(
    Adjective(*row)
    for row in table(
        """
        old         alt         alt         parcvlto
        small       klein       klein       partcofvl
        big         groß        groß        patcofvl
        beautiful   schön       schön       partcovl
        friendly    freundlich  freundlich  pa
        tired       müde        müd         pa
        happy       glücklich   glücklich   pa
        hungry      hungrig     hungrig     pa
        sick        krank       krank       pa
        famous      berühmt     berühmt     prl
        new         neu         neu         rtcovl
        expensive   teuer       teur        rtcofdv
        ugly        hässlich    hässlich    atcovl
        red         rot         rot         tcov
        green       grün        grün        tcov
        white       weiß        weiß        atcovl
        black       schwarz     schwarz     atcov
        cold        kalt        kalt        fd
        fresh       frisch      frisch      fd
        interesting interessant interessant pr
        empty       leer        leer        ol
        """
    )
)

_DER = endings("er e es e", "en e es e", "em er em en")
_EIN = endings("- e - e", "en e - e", "em er em en")
_PLURAL = endings("- - - e", "- - - e", "- - - en")
_NONE = endings("- - - -", "- - - -", "- - - -")


def _inflected(stem: str, pattern: dict[str, str]) -> dict[str, str]:
    return {form: stem + ending for form, ending in pattern.items()}


def _possessive(english: str, german: str) -> Determiner:
    return Determiner(english, english, _inflected(german, _EIN), "mixed", definite=True)


def _quantity(english: str, german: dict[str, str]) -> Determiner:
    return Determiner("", english, german, "strong", definite=False)


THE = Determiner(
    "the",
    "the",
    endings("der die das die", "den die das die", "dem der dem den"),
    "weak",
    definite=True,
)
# `a` is bare with plurals and mass nouns, and BARE is then its German
A = Determiner("a", "", _inflected("ein", _EIN), "mixed", definite=False)
BARE = Determiner("", "", _NONE, "strong", definite=False)
NO = Determiner("no", "no", _inflected("kein", _EIN), "mixed", definite=False)
THIS = Determiner("this", "these", _inflected("dies", _DER), "weak", definite=True)
EVERY = Determiner("every", "", _inflected("jed", _DER), "weak", definite=False)
ALL = Determiner("", "all", _inflected("all", _PLURAL), "weak", definite=False)
POSSESSIVES = (
    _possessive("my", "mein"),
    _possessive("his", "sein"),
    _possessive("her", "ihr"),
    _possessive("our", "unser"),
)
QUANTITIES = (
    _quantity("many", _inflected("viel", _PLURAL)),
    _quantity("some", _inflected("einig", _PLURAL)),
    _quantity("two", _inflected("zwei", _NONE)),
    _quantity("three", _inflected("drei", _NONE)),
)

PRONOUNS = tuple(
    Pronoun(english, english_object, {"nom": nom, "acc": acc, "dat": dat}, agreement, first)
    for english, english_object, nom, acc, dat, agreement, first in (
        ("I", "me", "ich", "mich", "mir", FIRST, True),
        ("he", "him", "er", "ihn", "ihm", THIRD, False),
        ("she", "her", "sie", "sie", "ihr", THIRD, False),
        ("we", "us", "wir", "uns", "uns", PLURAL, True),
        ("they", "them", "sie", "sie", "ihnen", PLURAL, False),
    )
)

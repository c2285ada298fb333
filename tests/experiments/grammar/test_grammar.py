# SPDX-License-Identifier: Apache-2.0
"""The grammar: literal sentences of each phenomenon, and no ambiguity."""

from dataclasses import replace

import pytest

from experiments.grammar import nouns, particles, verbs
from experiments.grammar.english import english
from experiments.grammar.german import german
from experiments.grammar.meaning import Clause, Gap, NounPhrase, Pair, PrepositionalPhrase, Sentence
from experiments.grammar.sampling import MeaningSampler

NOUN = {noun.english: noun for noun in nouns.NOUNS}
ADJECTIVE = {adjective.english: adjective for adjective in nouns.ADJECTIVES}
PRONOUN = {pronoun.english: pronoun for pronoun in nouns.PRONOUNS}
MODAL = {modal.english[1]: modal for modal in (*verbs.MODALS, verbs.WILL)}
QUANTITY = {quantity.english_plural: quantity for quantity in nouns.QUANTITIES}
MY, HIS, HER, OUR = nouns.POSSESSIVES
VERB = {
    verb.name: verb
    for family in ("OBJECT_VERBS", "GIVING_VERBS", "PLAIN_VERBS", "MOTION_VERBS", "SAYING_VERBS")
    for verb in getattr(verbs, family)
}
LINK = {link.english: link for link in (*particles.ADVERBIAL, particles.AND, particles.BUT)}
ADVERB = {
    adverb.english: adverb
    for adverb in (*particles.TIMES, *particles.FREQUENCIES, *particles.MANNERS)
}
PREPOSITION = {
    preposition.english: preposition
    for preposition in (*particles.LOCATIONS, *particles.GOALS, *particles.COMPANIONS)
}


def phrase(determiner, *words, plural=False, relative=None):
    *adjective, noun = words
    return NounPhrase(
        determiner, NOUN[noun], plural, ADJECTIVE[adjective[0]] if adjective else None, relative
    )


def the(*words, **kwargs):
    return phrase(nouns.THE, *words, **kwargs)


def a(*words, **kwargs):
    return phrase(nouns.A, *words, **kwargs)


def at(preposition, place):
    return PrepositionalPhrase(PREPOSITION[preposition], place)


def say(subject, verb, obj=None, **fields):
    """A clause, its words named by their English."""
    for field, table in (("modal", MODAL), *((f, ADVERB) for f in ("time", "frequency", "manner"))):
        if field in fields:
            fields[field] = table[fields[field]]
    return Clause(subject, VERB[verb], obj, **fields)


ME, HE, SHE, WE, THEY = (PRONOUN[word] for word in ("I", "he", "she", "we", "they"))
SLEEPS = say(the("man"), "sleep")
CALLS = say(the("woman"), "call", the("boy"))


def related(antecedent, clause):
    """`antecedent` described by `clause`, of which it is the subject or the object: None there."""
    role = "subject" if clause.subject is None else "obj"
    return replace(antecedent, relative=replace(clause, **{role: Gap(antecedent)}))


DOG_THAT_SLEEPS = related(the("dog"), say(None, "sleep"))
BOY_WHOM_SHE_CALLS = related(the("boy"), Clause(SHE, VERB["call"]))
SISTERS_WHOM_HE_THANKS = related(the("sister", plural=True), Clause(HE, VERB["thank"]))

MEANINGS = {
    "gender and accusative": Sentence(say(the("man"), "see", the("dog"))),
    "dative verb, weak noun": Sentence(say(the("girl"), "help", phrase(HER, "neighbour"))),
    "recipient and dative plural": Sentence(
        say(WE, "give", a("red", "ball"), recipient=the("small", "child", plural=True))
    ),
    "weak endings": Sentence(say(the("old", "man"), "see", the("old", "horse"))),
    "mixed endings, an": Sentence(say(a("old", "man"), "buy", a("expensive", "car"))),
    "strong endings, plural and mass": Sentence(
        say(a("happy", "boy", plural=True), "drink", a("cold", "water"))
    ),
    "strong endings after a quantity": Sentence(
        say(ME, "help", phrase(QUANTITY["two"], "sick", "cat", plural=True))
    ),
    "contracted preposition": Sentence(say(SHE, "go", place=at("to", the("church")))),
    "place and goal": Sentence(
        say(the("cat"), "sleep", place=at("in", the("house"))),
        LINK["and"],
        say(the("dog"), "run", place=at("into", a("house"))),
    ),
    "accusative preposition": Sentence(
        say(SHE, "dance", place=at("without", phrase(HIS, "brother")))
    ),
    "prepositional object": Sentence(say(THEY, "wait for", the("bus"), negated=True)),
    "fronted time": Sentence(say(the("king"), "buy", a("horse"), time="today", fronted="time")),
    "fronted place": Sentence(
        say(the("king"), "sing", place=at("in", the("park")), fronted="place")
    ),
    "adverb behind a definite object": Sentence(
        say(HE, "sell", the("book"), time="tomorrow", modal="will")
    ),
    "adverb before an indefinite object": Sentence(say(HE, "sell", a("book"), frequency="often")),
    "separable verb in a main clause": Sentence(say(the("woman"), "throw away", the("letter"))),
    "separable verb, verb-final": Sentence(SLEEPS, LINK["because"], CALLS),
    "separable participle, verb-final": Sentence(
        SLEEPS, LINK["because"], replace(CALLS, past=True)
    ),
    "subordinate clause first": Sentence(SLEEPS, LINK["although"], CALLS, other_first=True),
    "modal, verb-final": Sentence(
        say(ME, "say"), particles.THAT, replace(CALLS, modal=MODAL["wants"])
    ),
    "whether": Sentence(say(HE, "ask", past=True), particles.WHETHER, replace(SLEEPS, past=True)),
    "coordination is verb-second": Sentence(SLEEPS, LINK["but"], CALLS),
    "nicht behind a definite object": Sentence(say(the("man"), "see", the("dog"), negated=True)),
    "nicht before the right bracket": Sentence(
        say(the("man"), "invite", PRONOUN["she"], negated=True, past=True)
    ),
    "kein": Sentence(say(the("man"), "buy", a("old", "car"), negated=True, modal="can")),
    "kein in the plural": Sentence(say(WE, "need", a("new", "table", plural=True), negated=True)),
    "permission": Sentence(say(ME, "open", the("door"), negated=True, modal="is")),
    "obligation": Sentence(say(SHE, "work", negated=True, modal="has")),
    "perfect with sein": Sentence(
        say(the("queen"), "come", place=at("out of", the("village")), past=True)
    ),
    "predicate": Sentence(
        Clause(Pair(the("king"), phrase(MY, "sister")), verbs.BE, predicate=ADJECTIVE["tired"])
    ),
    "predicate in the past": Sentence(
        Clause(ME, verbs.BE, predicate=ADJECTIVE["sick"], past=True, negated=True)
    ),
    "relative clause, subject": Sentence(say(DOG_THAT_SLEEPS, "see", PRONOUN["he"])),
    "relative clause, accusative": Sentence(say(ME, "love", BOY_WHOM_SHE_CALLS)),
    "relative clause, dative plural": Sentence(say(SISTERS_WHOM_HE_THANKS, "cry")),
    "question with do": Sentence(CALLS, question=particles.WHY),
    "question, verb first": Sentence(replace(CALLS, past=True), question=particles.YES_NO),
    "no, every and all": Sentence(
        say(phrase(nouns.NO, "man"), "love", phrase(nouns.EVERY, "pig")),
        LINK["but"],
        say(THEY, "love", phrase(nouns.ALL, "small", "dog", plural=True)),
    ),
    "manner": Sentence(
        say(WE, "run", manner="quickly", place=at("through", phrase(OUR, "garden")))
    ),
}
SENTENCES = """\
The man sees the dog.
Der Mann sieht den Hund.
The girl helps her neighbour.
Das Mädchen hilft ihrem Nachbarn.
We give the small children a red ball.
Wir geben den kleinen Kindern einen roten Ball.
The old man sees the old horse.
Der alte Mann sieht das alte Pferd.
An old man buys an expensive car.
Ein alter Mann kauft ein teures Auto.
Happy boys drink cold water.
Glückliche Jungen trinken kaltes Wasser.
I help two sick cats.
Ich helfe zwei kranken Katzen.
She goes to the church.
Sie geht zur Kirche.
The cat sleeps in the house, and the dog runs into a house.
Die Katze schläft im Haus und der Hund läuft in ein Haus.
She dances without his brother.
Sie tanzt ohne seinen Bruder.
They do not wait for the bus.
Sie warten nicht auf den Bus.
Today the king buys a horse.
Heute kauft der König ein Pferd.
In the park the king sings.
Im Park singt der König.
He will sell the book tomorrow.
Er wird das Buch morgen verkaufen.
He often sells a book.
Er verkauft oft ein Buch.
The woman throws the letter away.
Die Frau wirft den Brief weg.
The man sleeps because the woman calls the boy.
Der Mann schläft, weil die Frau den Jungen anruft.
The man sleeps because the woman called the boy.
Der Mann schläft, weil die Frau den Jungen angerufen hat.
Although the woman calls the boy, the man sleeps.
Obwohl die Frau den Jungen anruft, schläft der Mann.
I say that the woman wants to call the boy.
Ich sage, dass die Frau den Jungen anrufen will.
He asked whether the man slept.
Er hat gefragt, ob der Mann geschlafen hat.
The man sleeps, but the woman calls the boy.
Der Mann schläft, aber die Frau ruft den Jungen an.
The man does not see the dog.
Der Mann sieht den Hund nicht.
The man did not invite her.
Der Mann hat sie nicht eingeladen.
The man cannot buy an old car.
Der Mann kann kein altes Auto kaufen.
We do not need new tables.
Wir brauchen keine neuen Tische.
I am not allowed to open the door.
Ich darf die Tür nicht aufmachen.
She does not have to work.
Sie muss nicht arbeiten.
The queen came out of the village.
Die Königin ist aus dem Dorf gekommen.
The king and my sister are tired.
Der König und meine Schwester sind müde.
I was not sick.
Ich war nicht krank.
The dog that sleeps sees him.
Der Hund, der schläft, sieht ihn.
I love the boy whom she calls.
Ich liebe den Jungen, den sie anruft.
The sisters whom he thanks cry.
Die Schwestern, denen er dankt, weinen.
Why does the woman call the boy?
Warum ruft die Frau den Jungen an?
Did the woman call the boy?
Hat die Frau den Jungen angerufen?
No man loves every pig, but they love all small dogs.
Kein Mann liebt jedes Schwein, aber sie lieben alle kleinen Hunde.
We run quickly through our garden.
Wir laufen schnell durch unseren Garten.
""".splitlines()
"""Each meaning in English, and in German."""


PAIRS = [*zip(MEANINGS, SENTENCES[::2], SENTENCES[1::2], strict=True)]


@pytest.mark.parametrize(("name", "source", "target"), PAIRS, ids=MEANINGS)
def test_literal_sentences(name, source, target):
    assert (english(MEANINGS[name]), german(MEANINGS[name])) == (source, target)


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
    tenses = [{}, {"past": True}, *({"modal": modal} for modal in MODAL.values())]
    families = (*verbs.OBJECT_VERBS, *verbs.GIVING_VERBS, *verbs.PLAIN_VERBS)
    assert_one_translation_each(
        Sentence(Clause(subject, verb, obj, **tense))
        for verb in (*families, *verbs.MOTION_VERBS, *verbs.SAYING_VERBS)
        for obj in ((the("dog"), a("dog")) if verb.kinds else (None,))
        for subject in (ME, HE, THEY)
        for tense in tenses
    )


def test_no_noun_phrase_is_ambiguous():
    """`the fish`, singular or plural, would be."""
    determiners = (nouns.THE, nouns.A, nouns.THIS, *nouns.POSSESSIVES)
    assert_one_translation_each(
        Sentence(Clause(ME, VERB["see"], NounPhrase(determiner, noun, plural, adjective)))
        for determiner in determiners
        for noun in nouns.NOUNS
        for plural in ((False,) if noun.mass else (False, True))
        for adjective in (None, *nouns.ADJECTIVES)
    )

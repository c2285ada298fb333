# SPDX-License-Identifier: Apache-2.0
"""Verbs and modals.

Verbs that would make the translation ambiguous are left out, such as `read` (present or past) and
`must` (its negation is another modal: `must not`, darf nicht).
"""

from experiments.grammar.words import Modal, Preposition, Verb, table


def _verbs(text: str) -> tuple[Verb, ...]:
    return tuple(_verb(*row) for row in table(text))


def _verb(
    base, third, past, particle, prefix, infinitive, german_third, participle, auxiliary, *obj
):
    kinds, *government = obj or ("",)
    preposition = government[0] if government else ""
    return Verb(
        name=" ".join(filter(None, (base, preposition, particle))),
        english=base,
        english_present=(base, third, base),
        english_past=(past, past, past),
        particle=particle,
        prefix=prefix,
        german=infinitive,
        german_present=(infinitive.removesuffix("n"), german_third, infinitive),
        german_past=None,
        participle=participle,
        auxiliary=auxiliary,
        government=Preposition(*government) if government else Preposition("", "", "acc"),
        kinds=kinds,
    )


# base, third person, past, particle | prefix, infinitive, third person, participle, auxiliary
# | kinds of the object
_ACCUSATIVE_VERBS = _verbs(
    """
    see        sees        saw        -     -   sehen      sieht     gesehen     hat partcofvl
    buy        buys        bought     -     -   kaufen     kauft     gekauft     hat artcofdv
    sell       sells       sold       -     -   verkaufen  verkauft  verkauft    hat artcfvd
    find       finds       found      -     -   finden     findet    gefunden    hat partcf
    need       needs       needed     -     -   brauchen   braucht   gebraucht   hat prtcfvd
    love       loves       loved      -     -   lieben     liebt     geliebt     hat pal
    visit      visits      visited    -     -   besuchen   besucht   besucht     hat pl
    meet       meets       met        -     -   treffen    trifft    getroffen   hat p
    ask        asks        asked      -     -   fragen     fragt     gefragt     hat p
    understand understands understood -     -   verstehen  versteht  verstanden  hat pr
    write      writes      wrote      -     -   schreiben  schreibt  geschrieben hat r
    draw       draws       drew       -     -   zeichnen   zeichnet  gezeichnet  hat patcl
    carry      carries     carried    -     -   tragen     trägt     getragen    hat tco
    repair     repairs     repaired   -     -   reparieren repariert repariert   hat tov
    forget     forgets     forgot     -     -   vergessen  vergisst  vergessen   hat prtc
    lose       loses       lost       -     -   verlieren  verliert  verloren    hat rtc
    eat        eats        ate        -     -   essen      isst      gegessen    hat f
    drink      drinks      drank      -     -   trinken    trinkt    getrunken   hat d
    open       opens       opened     -     auf machen     macht     aufgemacht  hat ro
    close      closes      closed     -     zu  machen     macht     zugemacht   hat ro
    invite     invites     invited    -     ein laden      lädt      eingeladen  hat p
    call       calls       called     -     an  rufen      ruft      angerufen   hat p
    pick       picks       picked     up    ab  holen      holt      abgeholt    hat pc
    bring      brings      brought    along mit bringen    bringt    mitgebracht hat partcfd
    throw      throws      threw      away  weg werfen     wirft     weggeworfen hat rtcf
    """
)

# as above | preposition, German preposition, case
_GOVERNING_VERBS = _verbs(
    """
    look   looks   looked   - -   suchen    sucht     gesucht     hat partc  for   -    acc
    look   looks   looked   - an  sehen     sieht     angesehen   hat partcl at    -    acc
    help   helps   helped   - -   helfen    hilft     geholfen    hat pa     -     -    dat
    thank  thanks  thanked  - -   danken    dankt     gedankt     hat p      -     -    dat
    answer answers answered - -   antworten antwortet geantwortet hat p      -     -    dat
    follow follows followed - -   folgen    folgt     gefolgt     ist pav    -     -    dat
    listen listens listened - zu  hören     hört      zugehört    hat p      to    -    dat
    wait   waits   waited   - -   warten    wartet    gewartet    hat pv     for   auf  acc
    think  thinks  thought  - -   denken    denkt     gedacht     hat pal    of    an   acc
    talk   talks   talked   - -   sprechen  spricht   gesprochen  hat parvl  about über acc
    look   looks   looked   - auf passen    passt     aufgepasst  hat pac    after auf  acc
    dream  dreams  dreamed  - -   träumen   träumt    geträumt    hat pavl   of    von  dat
    play   plays   played   - -   spielen   spielt    gespielt    hat pa     with  mit  dat
    """
)
OBJECT_VERBS = _ACCUSATIVE_VERBS + _GOVERNING_VERBS

# the object is given; the recipient is a person in the dative
GIVING_VERBS = _verbs(
    """
    give  gives  gave    - -  geben    gibt    gegeben   hat artcfd
    show  shows  showed  - -  zeigen   zeigt   gezeigt   hat artcvl
    send  sends  sent    - -  schicken schickt geschickt hat rtcf
    offer offers offered - an bieten   bietet  angeboten hat tcfd
    """
)

PLAIN_VERBS = _verbs(
    """
    sleep sleeps slept  -      -   schlafen  schläft  geschlafen    hat
    work  works  worked -      -   arbeiten  arbeitet gearbeitet    hat
    sing  sings  sang   -      -   singen    singt    gesungen      hat
    dance dances danced -      -   tanzen    tanzt    getanzt       hat
    cry   cries  cried  -      -   weinen    weint    geweint       hat
    swim  swims  swam   -      -   schwimmen schwimmt geschwommen   ist
    get   gets   got    up     auf stehen    steht    aufgestanden  ist
    fall  falls  fell   asleep ein schlafen  schläft  eingeschlafen ist
    """
)

# with a place as goal: into the house, to the city
MOTION_VERBS = _verbs(
    """
    go    goes   went  - - gehen  geht  gegangen ist
    run   runs   ran   - - laufen läuft gelaufen ist
    drive drives drove - - fahren fährt gefahren ist
    come  comes  came  - - kommen kommt gekommen ist
    """
)

# with a clause: says that, asks whether
SAYING_VERBS = _verbs(
    """
    say     says     said      - - sagen    sagt    gesagt   hat
    believe believes believed  - - glauben  glaubt  geglaubt hat
    hope    hopes    hoped     - - hoffen   hofft   gehofft  hat
    notice  notices  noticed   - - bemerken bemerkt bemerkt  hat
    explain explains explained - - erklären erklärt erklärt  hat
    """
)
ASK = next(verb for verb in OBJECT_VERBS if verb.name == "ask")

BE = Verb(
    name="be",
    english="be",
    english_present=("am", "is", "are"),
    english_past=("was", "was", "were"),
    particle="",
    prefix="",
    german="sein",
    german_present=("bin", "ist", "sind"),
    german_past=("war", "war", "waren"),
    participle="gewesen",
    auxiliary="ist",
    government=Preposition("", "", "nom"),
    kinds="",
)
DO_PRESENT = ("do", "does", "do")
PERFECT = {"hat": ("habe", "hat", "haben"), "ist": BE.german_present}

WILL = Modal(("will",) * 3, True, (), ("werde", "wird", "werden"), tense="future")
MODALS = (
    Modal(("can",) * 3, True, (), ("kann", "kann", "können")),
    Modal(("should",) * 3, True, (), ("sollte", "sollte", "sollten")),
    Modal(("want", "wants", "want"), False, ("to",), ("will", "will", "wollen")),
    Modal(("have", "has", "have"), False, ("to",), ("muss", "muss", "müssen")),
    Modal(BE.english_present, True, ("allowed", "to"), ("darf", "darf", "dürfen")),
)

# verbs whose subject may be an animal
ANIMAL_VERBS = frozenset(
    ("see", "find", "need", "love", "follow", "look for", "look at", "wait for", "help")
    + ("eat", "drink", "sleep", "swim", "fall asleep", "run", "come", "go")
)
# verbs with a beneficiary: `for` a person
SERVING_VERBS = frozenset(("buy", "find", "write", "draw", "carry", "repair"))

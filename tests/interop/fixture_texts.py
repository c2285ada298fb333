# SPDX-License-Identifier: Apache-2.0
"""Texts of the fixtures: sentences to train tokenizers on, and lines to compare them on."""

import random
import unicodedata

WORDS = """
latin the a dog cat man woman child house street walks runs sees holds in on under with and of two
latin red small old green water ball bicycle people playing standing next to their young city
latin der die das ein eine Hund Katze Mann Frau Straße läuft steht grün über für schön Mädchen und
latin große Bücher weiß Wasser mit auf
accented Año café naïve São Łódź İstanbul ijsland Ærø fiancée COÖPERATE don't it's
greek η γάτα τρέχει στον δρόμο ΚΑΛΗΜΈΡΑ κόσμε σπίτι νερό άνθρωπος
cyrillic собака бежит по улице дом Ёлка вода человек ёж ПРИВЕТ їжак
chinese 你好世界 一只狗 在 街上 跑 漂亮 的 水 人们 學習 漢字 𠮷野家
japanese こんにちは 世界 犬が 走る カタカナ ｶﾀｶﾅ がぎぐ 東京タワー ー々
korean 안녕하세요 세계 개가 달린다 물
arabic مرحبا بالعالم كلب يجري في الشارع ماء مُحَمَّد ٣٤٥
hebrew שלום עולם כלב רץ ברחוב מים שָׁלוֹם
devanagari नमस्ते दुनिया कुत्ता दौड़ता है पानी क्षत्रिय १२३
thai สวัสดี ชาวโลก น้ำ สุนัข
emoji 😀 🐶 👍🏽 👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 ❤️ 🇩🇪 1️⃣ 👨🏿\u200d🚀 ☃
numbers 0 7 42 1,234.56 2024-05-17 3:30 1e-5 12345678 ½ x² H₂O Ⅳ №5 ① １２３ 99%
symbols — – … “quoted” ‘x’ «oui» ¿qué? € £5 a/b c++ <b> & #tag @me http://a.b/c?d=e_f ™ ﬁn
code def f(x): return x**2 {'a': [1]} a_b --flag C:\\dir $HOME `x` ~ ^ |
special <s> </s> <unk> <pad> <mask> [MASK] [CLS] [SEP] [UNK] <|endoftext|> <extra_id_3>
special ▁ ##s <0x41> <bos> <|begin_of_text|> en_XX
"""


def word_lists(text):
    lists = {}
    for name, *words in map(str.split, text.strip().split("\n")):
        lists.setdefault(name, []).extend(words)
    return lists


SCRIPTS = word_lists(WORDS)
LATIN, SPECIAL = SCRIPTS["latin"], SCRIPTS.pop("special")
SCRIPTS["latin"] = LATIN + SCRIPTS.pop("accented")
# Zero-width space, joiners, soft hyphen, BOM, control and private-use characters.
INVISIBLE = ["\u200b", "\u200d", "\u200c", "\u00ad", "\ufeff", "\u2060", "\x07", "\x7f", "\ue000"]
SPACES = ["  ", "   ", "\t", "\u00a0", "\u3000", "\u2009", " \t ", "\u202f"]
FEW = ["", " ", "  ", "\t", "\u00a0", "\u200b", ".", "a", " a", "a ", "▁", "▁a", "Ġ", "e\u0301"]
FEW += [">>deu<< the dog", ">>deu<<the dog", ">>xyz<< the dog", " >>fra<< a cat", ">>deu the"]
FEW += ["[MASK][MASK]", "the[MASK]dog", "the [MASK] dog", "<s><s>", "</s> the", "x<mask> y"]
FEW += ["a" * 30, "THE DOG", "!!!???...", "x" * 120, "don't we'll I'M you'VE", "the </s>", "\u0301"]


def decorated(word, draw):
    """A word, sometimes in another case, decomposed, or with something attached."""
    kind = draw.random()
    if kind < 0.06:
        return word.upper()
    if kind < 0.12:
        return word.title()
    if kind < 0.18:
        return unicodedata.normalize("NFD", word)
    if kind < 0.21:
        return word + draw.choice(["\u0301", "\u0308", "\u0327", "\u20dd"])
    if kind < 0.25:
        return word + draw.choice(INVISIBLE)
    if kind < 0.40:
        return word + draw.choice([",", ".", "!", "?", ";", ":", ")", "...", "。", "،", "'s"])
    return word


def mixed_line(draw):
    """One to seven words, mostly of one script, with various whitespace."""
    main = draw.choice(list(SCRIPTS))
    line = draw.choice(["", "", "", "", "", " ", "  ", "\t", "\u00a0"])
    for index in range(draw.randint(1, 7)):
        script = main if draw.random() < 0.75 else draw.choice(list(SCRIPTS))
        word = draw.choice(SPECIAL if draw.random() < 0.06 else SCRIPTS[script])
        gap = draw.choices([" ", "", draw.choice(SPACES)], [0.84, 0.06, 0.10])[0]
        line += (gap if index else "") + decorated(word, draw)
    return line + draw.choice(["", "", "", "", "", "", " ", "  ", "\t"])


def lines(count=1000):
    """Mixed lines, without line breaks in them."""
    draw = random.Random(1)
    found = FEW + [mixed_line(draw) for _ in range(count - len(FEW))]
    assert all(len(line.splitlines()) <= 1 and "\n" not in line for line in found)
    return found


def training_lines(seed, count=800):
    """Training sentences: Latin, with some of other scripts for their letters."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(count):
        words = [draw.choice(LATIN) for _ in range(draw.randint(3, 9))]
        if draw.random() < 0.08:
            words.append(draw.choice(SCRIPTS[draw.choice(["greek", "cyrillic", "chinese"])]))
        if draw.random() < 0.1:
            words.append(str(draw.randint(0, 99)))
        sentences.append(" ".join(words).capitalize() + draw.choice([".", ".", "!", "?", ", no."]))
    return sentences


def normalization_rules():
    """Normalization rules for the compatibility characters of the lines: a small part of NMT NFKC.

    The whole map takes 240 kB in every model, so that only one fixture has it.
    """
    rules = {"\t": " ", "\u00a0": " ", "\u200b": " "}
    rules |= dict.fromkeys(["\ufeff", "\u00ad", "\x07", "\x7f"], "")
    for character in sorted(set("".join(lines()))):
        normal = unicodedata.normalize("NFKC", character)
        if normal != character:
            rules.setdefault(character, normal)
    for letter in "aeiouAEIOU":
        for accent in "\u0301\u0308":
            rules[letter + accent] = unicodedata.normalize("NFC", letter + accent)

    def codes(text):
        return " ".join(f"{ord(character):X}" for character in text)

    return "".join(f"{codes(left)}\t{codes(right)}\n" for left, right in sorted(rules.items()))

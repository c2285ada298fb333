# SPDX-License-Identifier: Apache-2.0
"""Splits of an endless stream of sentence pairs, by the content of each pair.

A stream is deterministic by its seed; the split of a pair depends only on pair and seed. So splits
of any size are disjoint, and a larger split begins with the smaller one.
"""

from hashlib import sha256
from itertools import islice
from zlib import crc32

from experiments.grammar.english import english
from experiments.grammar.german import german
from experiments.grammar.meaning import Sentence
from experiments.grammar.nouns import NOUNS
from experiments.grammar.sampling import MeaningSampler
from experiments.grammar.verbs import GIVING_VERBS, OBJECT_VERBS

SPLITS = ("train", "valid", "test", "test_combinations")
MAX_WORDS = 20
HELD_OUT_SHARE = 0.06  # of the nouns that a verb takes as its object


class PairStream:
    """Stream of a seed, drawn as far as any split needs.

    Splits: `train`; `valid` and `test`, whose sentences are in no other split, in neither language;
    `test_combinations`, whose sentences each have a verb-object pair that never occurs together in
    a sentence of another split.
    """

    def __init__(self, seed: int):
        self._sampler = MeaningSampler(seed)
        self._held_out = held_out_combinations(seed)
        self._pairs = {split: {} for split in SPLITS}  # target -> source

    def first(self, split: str, count: int) -> list[dict[str, str]]:
        """First `count` distinct pairs of a split, {"source": English, "target": German}."""
        pairs = self._pairs[split]
        while len(pairs) < count:
            self._draw()
        return [
            {"source": source, "target": target} for target, source in islice(pairs.items(), count)
        ]

    def _draw(self) -> None:
        sentence = self._sampler.sentence()
        target = german(sentence)
        if split := split_of(sentence, target, self._held_out):
            self._pairs[split].setdefault(target, english(sentence))


def split_of(sentence: Sentence, target: str, held_out: frozenset[tuple[str, str]]) -> str | None:
    """Returns the split of a sentence.

    None if it has more than MAX_WORDS words, or a held-out noun with its verb, but not as its
    object.

    The German side decides. Each English sentence has one German one, so neither side of a pair can
    be in two splits.
    """
    if target.count(" ") >= MAX_WORDS:
        return None
    if not held_out.isdisjoint(sentence.co_occurrences()):
        return None if held_out.isdisjoint(sentence.verb_object_pairs()) else "test_combinations"
    bucket = crc32(target.encode()) % 20
    return {0: "valid", 1: "test"}.get(bucket, "train")


def held_out_combinations(seed: int) -> frozenset[tuple[str, str]]:
    """(verb, noun) pairs held out of training: a share of each verb's objects."""
    pairs = []
    for verb in OBJECT_VERBS + GIVING_VERBS:
        candidates = [(verb.name, noun.english) for noun in NOUNS if noun.kind in verb.kinds]
        candidates.sort(key=lambda pair: sha256(f"{seed} {pair}".encode()).digest())
        pairs += candidates[: max(1, round(HELD_OUT_SHARE * len(candidates)))]
    return frozenset(pairs)

"""Splits of one endless stream of sentence pairs, by what each pair contains.

A stream is deterministic in its seed, and a pair's split depends on the pair and the seed alone.
Hence splits of any size share nothing, and a larger split begins with the smaller one.
"""

from functools import lru_cache
from hashlib import sha256
from itertools import islice
from zlib import crc32

from transformer_jax.data.synthetic.english import english
from transformer_jax.data.synthetic.german import german
from transformer_jax.data.synthetic.meaning import Sentence
from transformer_jax.data.synthetic.nouns import NOUNS
from transformer_jax.data.synthetic.sampling import MeaningSampler
from transformer_jax.data.synthetic.verbs import GIVING_VERBS, OBJECT_VERBS

SPLITS = ("train", "valid", "test", "test_combinations")
MAX_WORDS = 20
HELD_OUT_SHARE = 0.06  # of the nouns that a verb takes as its object


def synthetic_split(split: str, *, num_examples: int, seed: int) -> list[dict[str, str]]:
    """Draws `num_examples` different English-German pairs, deterministic in `seed`.

    Args:
      split: `train`; `valid` and `test`, whose sentences are in no other split, on neither side;
        or `test_combinations`, each of whose sentences has a verb with an object that never stand
        together in a sentence of another split.
      num_examples: how many pairs.
      seed: of the sentences and of the choice of held-out combinations. Splits belong together
        when they are drawn with the same seed.

    Returns:
      [{"source": English, "target": German}, ...].

    Raises:
      ValueError: there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: choose one of {', '.join(SPLITS)}")
    pairs = _stream(seed).first(split, num_examples)
    return [{"source": source, "target": target} for target, source in pairs]


class _Stream:
    """The stream of a seed, drawn as far as any split has asked for."""

    def __init__(self, seed: int):
        self._sampler = MeaningSampler(seed)
        self._held_out = held_out_combinations(seed)
        self._pairs = {split: {} for split in SPLITS}  # target -> source

    def first(self, split: str, count: int) -> list[tuple[str, str]]:
        """(target, source) of the first pairs of a split."""
        pairs = self._pairs[split]
        while len(pairs) < count:
            self._draw()
        return list(islice(pairs.items(), count))

    def _draw(self) -> None:
        sentence = self._sampler.sentence()
        target = german(sentence)
        if split := split_of(sentence, target, self._held_out):
            self._pairs[split].setdefault(target, english(sentence))


_stream = lru_cache(_Stream)


def split_of(sentence: Sentence, target: str, held_out: frozenset[tuple[str, str]]) -> str | None:
    """The split of a sentence.

    None if it has more than MAX_WORDS, or if a held-out noun meets its verb, but not as its object.

    The German side decides: one English sentence has one German one, so that neither side of a
    pair can be in two splits.
    """
    if target.count(" ") >= MAX_WORDS:
        return None
    if not held_out.isdisjoint(sentence.co_occurrences()):
        return None if held_out.isdisjoint(sentence.verb_object_pairs()) else "test_combinations"
    bucket = crc32(target.encode()) % 20
    return {0: "valid", 1: "test"}.get(bucket, "train")


@lru_cache
def held_out_combinations(seed: int) -> frozenset[tuple[str, str]]:
    """(verb, noun) pairs kept out of training: of every verb, a share of its objects."""
    pairs = []
    for verb in OBJECT_VERBS + GIVING_VERBS:
        candidates = [(verb.name, noun.english) for noun in NOUNS if noun.kind in verb.kinds]
        candidates.sort(key=lambda pair: sha256(f"{seed} {pair}".encode()).digest())
        pairs += candidates[: max(1, round(HELD_OUT_SHARE * len(candidates)))]
    return frozenset(pairs)

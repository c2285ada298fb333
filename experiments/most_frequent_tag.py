# SPDX-License-Identifier: Apache-2.0
"""Baseline of a tagger: each word's most frequent tag.

    python experiments/most_frequent_tag.py --config=configs/pos_gum.py --config.data.dir=FOLDER

A word that is not in the training split gets the most frequent tag of the words that occur there
once. Prints one JSON object. Set config fields as for `train`.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import transformer_jax as tj
from transformer_jax.cli.parser import take_overrides
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.runs.config import read_settings


def main() -> None:
    data, split = asked_for(__doc__.splitlines()[0])
    tagger = MostFrequentTag(tagged_words(data, "train"))
    scored = list(tagged_words(data, split))
    right = sum(tagger.tag(word) == tag for word, tag in scored)
    unmet = sum(word not in tagger.best for word, _ in scored)
    report = {"accuracy": right / len(scored), "words": len(scored), "unmet": unmet}
    print(json.dumps({**report, "split": split, "tag_of_unmet": tagger.unknown}))


def asked_for(description: str) -> tuple[DataConfig, str]:
    """Reads the data section of the config and the split to score from the command line."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--split", default="valid")
    words, fields = take_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    return read_settings(tj.config(args.config, fields)).data, args.split


class MostFrequentTag:
    """Most frequent tag of each word; for unknown words, the one of words that occur once."""

    def __init__(self, tagged: Iterable[tuple[str, str]]):
        counts: dict[str, Counter] = defaultdict(Counter)
        for word, tag in tagged:
            counts[word][tag] += 1
        rare = Counter(next(iter(tags)) for tags in counts.values() if tags.total() == 1)
        self.unknown = rare.most_common(1)[0][0]
        self.best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}

    def tag(self, word: str) -> str:
        return self.best.get(word, self.unknown)


def tagged_words(data: DataConfig, split: str) -> Iterator[tuple[str, str]]:
    for example in open_split(data, split):
        yield from zip(example["text"].split(" "), example["tags"].split(" "), strict=True)


if __name__ == "__main__":
    main()

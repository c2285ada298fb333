"""The baseline that a tagger must beat: each word's most frequent tag.

    python experiments/most_frequent_tag.py --config=configs/pos_gum.py --config.data.dir=FOLDER

A word that is not in the training split gets the most frequent tag of the words that occur there
once. Prints one JSON object. Fields of the config are set as for `train`.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator

import transformer_jax as tj
from transformer_jax.cli.parser import take_overrides
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources import open_split
from transformer_jax.runs.config import read_settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--split", default="valid")
    words, fields = take_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    data = read_settings(tj.config(args.config, fields)).data
    counts: dict[str, Counter] = defaultdict(Counter)
    for word, tag in tagged_words(data, "train"):
        counts[word][tag] += 1
    rare = Counter(next(iter(tags)) for tags in counts.values() if tags.total() == 1)
    unknown = rare.most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    scored = list(tagged_words(data, args.split))
    right = sum(best.get(word, unknown) == tag for word, tag in scored)
    unmet = sum(word not in best for word, _ in scored)
    report = {"accuracy": right / len(scored), "words": len(scored), "unmet": unmet}
    print(json.dumps({**report, "split": args.split, "tag_of_unmet": unknown}))


def tagged_words(data: DataConfig, split: str) -> Iterator[tuple[str, str]]:
    for example in open_split(data, split):
        yield from zip(example["text"].split(" "), example["tags"].split(" "), strict=True)


if __name__ == "__main__":
    main()

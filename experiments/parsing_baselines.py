# SPDX-License-Identifier: Apache-2.0
"""Baselines of a parser, scored like its trees.

    python -m experiments.parsing_baselines --config=configs/parse_gum.py --config.data.dir=FOLDER

Both use each word's most frequent tag (most_frequent_tag.py). "right_branching": each constituent
is a word and the rest of the sentence; final punctuation is attached to the root. Its labels are
the most frequent ones in the training split: of constituents that begin a sentence, and of those
that end one. "most_frequent_structure": the most frequent brackets of training sentences with the
same tags, else of sentences with the same length, else right-branching ones.

Prints one JSON object. Set config fields as for `train`.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from experiments.most_frequent_tag import MostFrequentTag, asked_for
from transformer_jax.data.sources import open_split
from transformer_jax.scoring.parseval import DELETED_TAGS, constituents, parseval
from transformer_jax.trees import CLOSE, OPEN, Tree, parse_tree, tree_from_tokens, tree_to_tokens

Structure = tuple[str | None, ...]
"""The tokens of a tree, with None for each tag."""


def main() -> None:
    data, split = asked_for(__doc__.splitlines()[0])
    trees = [parse_tree(example["target"]) for example in open_split(data, "train")]
    tagger = MostFrequentTag(leaf for tree in trees for leaf in tree.leaves())
    scored = [example["target"] for example in open_split(data, split)]
    sentences = [parse_tree(tree).words() for tree in scored]
    tags = [[tagger.tag(word) for word in words] for words in sentences]
    branching, frequent = RightBranching(trees), FrequentStructures(trees)
    report: dict[str, dict] = {"right_branching": {}, "most_frequent_structure": {}}
    for name in report:
        structures = [
            branching.of(of_one)
            if name == "right_branching"
            else frequent.of(of_one) or branching.of(of_one)
            for of_one in tags
        ]
        rows = zip(structures, tags, sentences, strict=True)
        report[name] = parseval([str(filled(*row)) for row in rows], scored)
    print(json.dumps({**report, "split": split, "trees": len(scored)}))


class FrequentStructures:
    """Most frequent structure of sentences with the same tags, else of the same length."""

    def __init__(self, trees: Sequence[Tree]):
        counts: dict[Hashable, Counter[Structure]] = defaultdict(Counter)
        for tree in trees:
            tokens = tree_to_tokens(tree)
            structure = tuple(one if one[0] in (OPEN, CLOSE) else None for one in tokens)
            tags = tuple(tag for _, tag in tree.leaves())
            for key in (tags, len(tags)):
                counts[key][structure] += 1
        self.best = {key: found.most_common(1)[0][0] for key, found in counts.items()}

    def of(self, tags: Sequence[str]) -> Structure | None:
        return self.best.get(tuple(tags)) or self.best.get(len(tags))


class RightBranching:
    """Each constituent is a word and the rest of the sentence."""

    def __init__(self, trees: Sequence[Tree]):
        whole, rest = Counter[str](), Counter[str]()
        for tree in trees:
            length = len(tree.words())
            for (label, start, end), count in constituents(tree, [True] * length).items():
                if (start, end) == (0, length):
                    whole[label] += count
                elif end >= length - 1 and end - start > 1:  # without final punctuation
                    rest[label] += count
        self.root = Counter(tree.label for tree in trees).most_common(1)[0][0]
        self.whole, self.rest = (found.most_common(1)[0][0] for found in (whole, rest))

    def of(self, tags: Sequence[str]) -> Structure:
        marked = len(tags) > 1 and tags[-1] in DELETED_TAGS
        words = len(tags) - marked
        inner = [part for _ in range(words - 2) for part in (None, OPEN + self.rest)]
        closes = [CLOSE] * (1 + max(words - 2, 0))
        last = [None] * min(words, 2)
        mark = [None] * marked
        return (OPEN + self.root, OPEN + self.whole, *inner, *last, *closes, *mark, CLOSE)


def filled(structure: Structure, tags: Sequence[str], words: Sequence[str]) -> Tree:
    """Fills a structure with words and tags."""
    left = iter(tags)
    return tree_from_tokens([next(left) if part is None else part for part in structure], words)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Draws sentences from running text, split into words as in the treebanks, for self-training.

    python -m experiments.unlabeled_sentences --config=configs/bert_small.py \\
        --config.data.dir=WIKITEXT2,GUTENBERG --count=10000 > sentences.txt
    python -m transformer_jax predict --workdir=runs/parser < sentences.txt > own.trees

The parser's own trees are more training data (Vaswani et al. 2017, section 6.3; McClosky et al.
2006, "Effective Self-Training for Parsing"):

    python -m transformer_jax train --config=configs/parse_gum_bert.py --workdir=runs/self \\
        --config.data.name=gum_const,bracketed_trees --config.data.train_text=own.trees ...

Sentences have 4 to 40 words and no <unk>, and each is drawn once. Set config fields as for `train`.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterable, Iterator

import transformer_jax as tj
from transformer_jax.cli.parser import take_overrides
from transformer_jax.data.sources import open_split
from transformer_jax.runs.config import read_settings

LENGTHS = range(4, 41)
WIKITEXT_MARKS = {" @-@ ": " - ", " @,@ ": ",", " @.@ ": "."}
WORD = re.compile(
    r"""
    <unk>
    | (?:Mr|Mrs|Dr|St|Messrs)\.     # titles keep their period
    | (?:[A-Z]\.)+(?=\s)            # and so do initials
    | \d+(?:[.,]\d+)*
    | \w+?(?=n['’]t\b) | n['’]t\b
    | ['’](?:s|re|ve|ll|d|m)\b
    | \w+ | -+ | \.+ | [^\w\s]
    """,
    re.VERBOSE,
)
ENDS = {".", "!", "?"}
CLOSING = {'"', "”", "’", ")"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--config", required=True)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    words, fields = take_overrides(sys.argv[1:])
    args = parser.parse_args(words)
    data = read_settings(tj.config(args.config, fields)).data
    texts = (document["text"] for document in open_split(data, "train"))
    found = sorted({" ".join(one) for text in texts for one in sentences(text) if is_wanted(one)})
    random.Random(args.seed).shuffle(found)
    print(*found[: args.count], sep="\n")


def sentences(text: str) -> Iterator[list[str]]:
    """The sentences of a text, as words. A paragraph also ends a sentence."""
    for mark, meaning in WIKITEXT_MARKS.items():
        text = text.replace(mark, meaning)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from split_at_ends(WORD.findall(paragraph))


def split_at_ends(words: Iterable[str]) -> Iterator[list[str]]:
    """Splits words after periods, exclamation and question marks, and quotes that follow them."""
    sentence: list[str] = []
    is_complete = False
    for word in words:
        if is_complete and word not in CLOSING:
            yield sentence
            sentence = []
        sentence.append(word)
        is_complete = word in ENDS or (is_complete and word in CLOSING)
    if sentence:
        yield sentence


def is_wanted(sentence: list[str]) -> bool:
    return len(sentence) in LENGTHS and "<unk>" not in sentence and sentence[-1] in ENDS | CLOSING


if __name__ == "__main__":
    main()

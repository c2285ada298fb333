# SPDX-License-Identifier: Apache-2.0
"""Public sets of plain text: tiny Shakespeare, WikiText-2, and books of Project Gutenberg."""

import os
from collections.abc import Sequence

from transformer_jax.data.config import DataConfig
from transformer_jax.data.examples import Corpus
from transformer_jax.data.files.text import WholeFiles
from transformer_jax.data.sets.download import PublicSet, RemoteFile
from transformer_jax.errors import UserError

_PYTORCH_EXAMPLES = (
    "https://raw.githubusercontent.com/pytorch/examples/"
    "77f55b912142e11fcfdf5b530231fb9c52f181e8/word_language_model/data/wikitext-2/"
)

TINY_SHAKESPEARE = PublicSet(
    name="tiny_shakespeare",
    files={
        "input.txt": RemoteFile(
            "https://raw.githubusercontent.com/karpathy/char-rnn/"
            "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
            1115394,
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        )
    },
)
"""About 40,000 lines of Shakespeare's plays (Karpathy 2015, char-rnn). Public domain."""

WIKITEXT2 = PublicSet(
    name="wikitext2",
    files={
        "wiki.train.tokens": RemoteFile(
            f"{_PYTORCH_EXAMPLES}train.txt",
            10797148,
            "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            stored_as="wiki.train.tokens",
        ),
        "wiki.valid.tokens": RemoteFile(
            f"{_PYTORCH_EXAMPLES}valid.txt",
            1121681,
            "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            stored_as="wiki.valid.tokens",
        ),
        "wiki.test.tokens": RemoteFile(
            f"{_PYTORCH_EXAMPLES}test.txt",
            1256449,
            "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
            stored_as="wiki.test.tokens",
        ),
    },
)
"""Wikipedia articles, tokenized, rare words as <unk>: 2,051,910, 213,886 and 241,211 words.

Merity et al. 2016, "Pointer Sentinel Mixture Models". CC BY-SA 3.0. Line ends (which the literature
counts as tokens) and blank lines are part of the text.
"""

GUTENBERG = PublicSet(
    name="gutenberg",
    files={},
    source="any books of gutenberg.org as NAME.txt; NLTK's selection, nltk.download('gutenberg'), "
    "contains the held-out ones",
)
"""Whole books, NLTK's selection or any other. Public domain in the USA."""

HELD_OUT_BOOKS = {"valid": "chesterton-thursday", "test": "austen-persuasion"}
"""Books for evaluation; NLTK's selection has other books by both authors."""


def open_tiny_shakespeare(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split as one document: the first 90% of the characters for training, the rest for
    "valid" and "test".

    Raises:
      UserError: the file is missing or cannot be used.
    """
    text = WholeFiles((TINY_SHAKESPEARE.path("input.txt", config.dir),))[0]["text"]
    middle = int(0.9 * len(text))
    return [[{"text": text[:middle] if split == "train" else text[middle:]}]]


def open_wikitext2(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split as one document, the split's file.

    Raises:
      UserError: the file is missing or cannot be used.
    """
    return [WholeFiles((WIKITEXT2.path(f"wiki.{split}.tokens", config.dir),))]


def open_gutenberg(config: DataConfig, split: str) -> Sequence[Corpus]:
    """Opens a split with one document per book; training excludes `HELD_OUT_BOOKS`.

    Raises:
      UserError: a held-out book or all others are missing, or a book cannot be used.
    """
    held_out = {
        name: GUTENBERG.path(f"{book}.txt", config.dir) for name, book in HELD_OUT_BOOKS.items()
    }
    if split != "train":
        return [WholeFiles((held_out[split],))]
    folder = GUTENBERG.local_folder(config.dir)
    names = {name.removesuffix(".gz") for name in os.listdir(folder)}
    books = {GUTENBERG.path(name, config.dir) for name in names if name.endswith(".txt")}
    train = sorted(books - set(held_out.values()))
    if not train:
        raise UserError(f"{folder} has no book to train on: add others as NAME.txt")
    return [WholeFiles(tuple(train))]

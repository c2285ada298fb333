# SPDX-License-Identifier: Apache-2.0
"""Checks that trees survive conversion to a parser's tokens and back.

    python experiments/trees_and_back.py GUM/*.trees.gz

Reads files of bracketed trees; converts each tree to tokens and back, with and without lookahead.
Prints the number of trees and of equal ones as JSON; exit status 1 if one differs.
"""

import argparse
import json
import sys

from transformer_jax.data.files.trees import read_parses
from transformer_jax.errors import UserError
from transformer_jax.trees import (
    Tree,
    parse_tree,
    tree_from_tokens,
    tree_to_tokens,
    with_lookahead,
    without_lookahead,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="trees in brackets, plain or .gz")
    trees = [
        parse_tree(example["target"])
        for path in parser.parse_args().files
        for example in read_parses(path)
    ]
    back = sum(comes_back(tree) for tree in trees)
    print(json.dumps({"trees": len(trees), "come_back": back}))
    sys.exit(back < len(trees))


def comes_back(tree: Tree) -> bool:
    """Returns True if both token forms convert back to the tree."""
    tokens, words = tree_to_tokens(tree), tree.words()
    read = without_lookahead(with_lookahead(tokens, words))
    return str(tree) == str(tree_from_tokens(tokens, words)) == str(tree_from_tokens(read, words))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")

"""A tree as a sequence of tokens, which a sequence model can write (Vinyals et al. 2015).

`(LABEL` begins a constituent and `)` ends one; between them stands the tag of each word. The words
themselves are not written: they are the sentence's, in its order.

    (TOP (NP (DT The) (NN house)))   ->   (TOP (NP DT NN ) )

Vinyals et al. write `)LABEL`, which says nothing more, and XX for each tag; here tags are predicted
too, so that a tree can be given back exactly.
"""

from collections.abc import Iterable, Sequence

from transformer_jax.trees.tree import Growing, Tree

OPEN, CLOSE = "(", ")"
"""What the token that begins a constituent starts with, and the token that ends one."""


def to_tokens(tree: Tree) -> list[str]:
    """The tokens of a tree."""
    return [
        CLOSE if node is None else (OPEN if node.word is None else "") + node.label
        for node in tree.walk()
    ]


def from_tokens(tokens: Iterable[str], words: Sequence[str]) -> Tree:
    """The tree of its tokens and its words.

    Raises:
      ValueError: they are none.
    """
    growing, left = Growing(), iter(words)
    for token in tokens:
        if token == CLOSE:
            growing.close()
        elif token.startswith(OPEN):
            growing.open(token.removeprefix(OPEN))
        elif word := next(left, None):
            growing.leaf(token, word)
        else:
            raise ValueError(f"there are more tags than {len(words)} words")
    if more := len([*left]):
        raise ValueError(f"{more} of {len(words)} words have no tag")
    return growing.whole()

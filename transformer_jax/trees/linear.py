"""A tree as a sequence of tokens, which a sequence model can write (Vinyals et al. 2015).

`(LABEL` begins a constituent and `)` ends one; between them stands the tag of each word. The words
themselves are not written: they are the sentence's, in its order.

    (TOP (NP (DT The) (NN house)))   ->   (TOP (NP DT NN ) )

Vinyals et al. write `)LABEL`, which says nothing more, and XX for each tag; here tags are predicted
too, so that a tree can be given back exactly.

With a lookahead of one word, as a shift-reduce parser has it, each word `/word` and its tag stand
before the brackets that part it from the word before; what is read last is `/`, the end:

    /The DT (TOP (NP /house NN / ) )

Who writes this need not count tags to know which word comes next.
"""

from collections.abc import Iterable, Sequence

from transformer_jax.trees.tree import Growing, Tree

OPEN, CLOSE = "(", ")"
"""What the token that begins a constituent starts with, and the token that ends one."""

READ = "/"
"""What the token of a word starts with, and by itself the end of the sentence."""


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


def with_lookahead(tokens: Sequence[str], words: Iterable[str]) -> list[str]:
    """The tokens of a tree with a lookahead of one word.

    Args:
      tokens: as `to_tokens` gives them.
      words: what stands for each word.
    """
    tags = (token for token in tokens if not token.startswith((OPEN, CLOSE)))
    read = iter([*((READ + word, tag) for word, tag in zip(words, tags, strict=True)), (READ,)])
    found = [*next(read)]
    for token in tokens:
        found += (token,) if token.startswith((OPEN, CLOSE)) else next(read)
    return found


def without_lookahead(tokens: Iterable[str]) -> list[str]:
    """The tokens of `to_tokens`, of what `with_lookahead` made of them."""
    found, tag = list[str](), None
    for token in tokens:
        if token.startswith(READ):
            found += [tag] if tag else []
        elif token.startswith((OPEN, CLOSE)):
            found.append(token)
        else:
            tag = token
    return found

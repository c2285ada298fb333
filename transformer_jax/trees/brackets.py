"""Trees of the Penn Treebank's form, in brackets: (TOP (NP (DT The) (NN house)))."""

import re
from collections.abc import Iterable, Iterator

from transformer_jax.trees.tree import Growing, Tree

_SPACE = r"[ \t\n\r\f\v]"
_WORD = r"[^() \t\n\r\f\v]"
_PARTS = re.compile(
    rf"\({_SPACE}*(?P<tag>{_WORD}+){_SPACE}+(?P<word>{_WORD}+){_SPACE}*\)"
    rf"|(?P<open>\({_SPACE}*(?P<label>{_WORD}*))|(?P<close>\))|(?P<stray>{_WORD}+)"
)


def parse_tree(text: str) -> Tree:
    """The one tree of a text.

    Words and labels are taken as they stand, brackets among the words as -LRB- and -RRB-. A
    constituent without a label, as the Treebank's outermost one is, will do.

    Raises:
      ValueError: it is not one tree with balanced brackets and a word in each leaf.
    """
    growing = Growing()
    for part in _PARTS.finditer(text):
        if part["word"]:
            growing.leaf(part["tag"], part["word"])
        elif part["open"]:
            growing.open(part["label"])
        elif part["close"]:
            growing.close()
        elif growing.depth:
            raise ValueError(f"{part['stray']!r} is neither a label nor in a leaf (TAG word)")
        else:
            raise ValueError(f"{part['stray']!r} outside of brackets")
    return growing.whole()


def tree_lines(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """The places of trees among the lines of a file: of each its first line, and that behind its
    last. A tree may be spread over lines, and begins on one of its own; blank lines are skipped.

    It goes by the number of brackets alone: `parse_tree` says what is no tree.
    """
    start, depth, i = 0, 0, -1
    for i, line in enumerate(lines):
        if not depth:
            start = i
        depth = max(0, depth + line.count("(") - line.count(")"))
        if not depth and (i > start or line.strip()):
            yield start, i + 1
    if depth:
        yield start, i + 1


def split_words(line: str) -> list[str]:
    """The words of a sentence, which spaces separate, as a tree has them: a bracket within one is
    -LRB- or -RRB-."""
    written = line.replace("(", "-LRB-").replace(")", "-RRB-")
    return [word for word in re.split(_SPACE, written) if word]

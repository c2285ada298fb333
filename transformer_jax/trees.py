# SPDX-License-Identifier: Apache-2.0
"""Constituency trees: brackets, cleaning, and trees as token sequences.

Nothing here recurses, so trees may be arbitrarily deep.

**Brackets** are those of the Penn Treebank: (TOP (NP (DT The) (NN house))).

**Tokens**, which a sequence model can write (Vinyals et al. 2015): `(LABEL` begins a constituent,
`)` ends one, and each word is replaced by its tag, since the words are those of the sentence:

    (TOP (NP (DT The) (NN house)))  ->  (TOP (NP DT NN ) )

Vinyals et al. write XX for every tag; here tags are predicted, so that the tree can be restored.

**Lookahead**: with a lookahead of one word, as in a shift-reduce parser, each word `/word` and its
tag come before the brackets between it and the previous word. The last one read is `/`, the end:

    /The DT (TOP (NP /house NN / ) )
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

TRACE = "-NONE-"
"""Tag of an empty element, which is no word of the sentence."""

OPEN = "("
"""First character of the token that begins a constituent."""

CLOSE = ")"
"""Token that ends a constituent."""

READ = "/"
"""First character of a word's token; by itself, the end of the sentence."""

_FUNCTION = re.compile(r"[-=|].*")
_SPACE = r"[ \t\n\r\f\v]"
_WORD = r"[^() \t\n\r\f\v]"
_PARTS = re.compile(
    rf"\({_SPACE}*(?P<tag>{_WORD}+){_SPACE}+(?P<word>{_WORD}+){_SPACE}*\)"
    rf"|(?P<open>\({_SPACE}*(?P<label>{_WORD}*))|(?P<close>\))|(?P<stray>{_WORD}+)"
)


@dataclass(frozen=True)
class Tree:
    """A node with its subtree: a leaf has a word, a constituent has children.

    Attributes:
      label: label of a constituent, or tag of a leaf's word; "" for a constituent without a label,
        such as the outermost one of the Penn Treebank.
      children: children of a constituent from left to right, at least one; none for a leaf.
      word: word of a leaf; None for a constituent.
    """

    label: str
    children: tuple["Tree", ...] = ()
    word: str | None = None

    def walk(self) -> Iterator["Tree | None"]:
        """Yields the nodes, parents before children, and None at the end of each constituent."""
        waiting: list[Tree | None] = [self]
        while waiting:
            node = waiting.pop()
            yield node
            if node is not None and node.word is None:
                waiting += (None, *reversed(node.children))

    def leaves(self) -> list[tuple[str, str]]:
        """(word, tag) of each leaf, from left to right."""
        return [(node.word, node.label) for node in self.walk() if node and node.word is not None]

    def words(self) -> list[str]:
        return [word for word, _ in self.leaves()]

    def __str__(self) -> str:
        """The tree in brackets, on one line: (TOP (NP (DT The) (NN house)))."""
        parts = []
        for node in self.walk():
            if node is None:  # a constituent ends
                parts.append(")")
            else:
                parts.append(f" ({node.label}" + ("" if node.word is None else f" {node.word})"))
        return "".join(parts).removeprefix(" ")


class TreeBuilder:
    """Builds a tree from left to right. ValueError for steps that make no tree."""

    def __init__(self) -> None:
        # Labels and children of the open constituents; the outermost entry holds the root.
        self._open: list[tuple[str, list[Tree]]] = [("", [])]

    @property
    def depth(self) -> int:
        return len(self._open) - 1

    def open(self, label: str) -> None:
        self._require_no_root()
        self._open.append((label, []))

    def add_leaf(self, tag: str, word: str) -> None:
        self._require_no_root()
        self._open[-1][1].append(Tree(tag, word=word))

    def close(self) -> None:
        if not self.depth:
            raise ValueError("a bracket is closed that none opened")
        label, children = self._open.pop()
        if not children:
            raise ValueError(f"({label} ) is over no words")
        self._open[-1][1].append(Tree(label, tuple(children)))

    def finish(self) -> Tree:
        if self.depth:
            raise ValueError(f"brackets that are not closed: {self.depth}")
        if not self._open[0][1]:
            raise ValueError("no tree")
        return self._open[0][1][0]

    def _require_no_root(self) -> None:
        if not self.depth and self._open[0][1]:
            raise ValueError("a second root after the end of the tree")


def parse_tree(text: str) -> Tree:
    """Parses a text with one tree in brackets.

    Words and labels are not unescaped: brackets among the words stay -LRB- and -RRB-. A constituent
    may have no label, such as the Treebank's outermost one.

    Raises:
      ValueError: the text is not one tree with balanced brackets and a word in each leaf.
    """
    builder = TreeBuilder()
    for part in _PARTS.finditer(text):
        if part["word"]:
            builder.add_leaf(part["tag"], part["word"])
        elif part["open"]:
            builder.open(part["label"])
        elif part["close"]:
            builder.close()
        elif builder.depth:
            raise ValueError(f"{part['stray']!r} is neither a label nor in a leaf (TAG word)")
        else:
            raise ValueError(f"{part['stray']!r} outside of brackets")
    return builder.finish()


def tree_line_spans(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yields (first line, line after the last) of each tree in a file. A tree may span lines, and
    begins on a new line; blank lines are skipped.

    Only brackets are counted; `parse_tree` reports the errors.
    """
    start = 0
    depth = 0
    i = -1
    for i, line in enumerate(lines):
        if not depth:
            start = i
        depth = max(0, depth + line.count("(") - line.count(")"))
        if not depth and (i > start or line.strip()):
            yield start, i + 1
    if depth:
        yield start, i + 1


def split_words(line: str) -> list[str]:
    """Words of a sentence, separated by spaces, as a tree has them: with -LRB- and -RRB- for
    brackets."""
    written = line.replace("(", "-LRB-").replace(")", "-RRB-")
    return [word for word in re.split(_SPACE, written) if word]


def join_trees(parts: Sequence[Tree]) -> Tree:
    """One tree over the words of several: the children of all roots, under the first root."""
    first, *others = parts
    if not others:
        return first
    children = [child for tree in parts for child in (tree.children or (tree,))]
    return Tree(first.label if first.children else "", tuple(children))


def without_traces(tree: Tree) -> Tree | None:
    """The tree without leaves tagged -NONE-, and without the constituents that this leaves empty;
    None if nothing remains."""
    return _rebuilt(tree, lambda label: label, lambda leaf: leaf.label != TRACE)


def without_function_tags(tree: Tree) -> Tree:
    """The tree with plain labels: NP-SBJ=1 becomes NP, ADVP|PRT becomes ADVP. -LRB- and the tags of
    words stay."""
    relabeled = _rebuilt(tree, _category, lambda leaf: True)
    assert relabeled is not None  # no leaf is left out
    return relabeled


def _category(label: str) -> str:
    return label if label.startswith("-") else _FUNCTION.sub("", label)


def _rebuilt(
    tree: Tree, relabel: Callable[[str], str], keep: Callable[[Tree], bool]
) -> Tree | None:
    """The tree with its constituents relabeled, and only the leaves that are kept."""
    open_nodes: list[tuple[str, list[Tree]]] = [("", [])]
    for node in tree.walk():
        if node is None:
            label, children = open_nodes.pop()
            if children:
                open_nodes[-1][1].append(Tree(relabel(label), tuple(children)))
        elif node.word is None:
            open_nodes.append((node.label, []))
        elif keep(node):
            open_nodes[-1][1].append(node)
    return open_nodes[0][1][0] if open_nodes[0][1] else None


def tree_to_tokens(tree: Tree) -> list[str]:
    """Tokens of a tree without its words: "(LABEL", ")" and the tag of each word."""
    return [
        CLOSE if node is None else (OPEN if node.word is None else "") + node.label
        for node in tree.walk()
    ]


def tree_from_tokens(tokens: Iterable[str], words: Sequence[str]) -> Tree:
    """Tree of its tokens and words; ValueError if they make no tree."""
    builder = TreeBuilder()
    words_left = iter(words)
    for token in tokens:
        if token == CLOSE:
            builder.close()
        elif token.startswith(OPEN):
            builder.open(token.removeprefix(OPEN))
        else:  # a word's tag
            word = next(words_left, None)
            if not word:
                raise ValueError(f"there are more tags than {len(words)} words")
            builder.add_leaf(token, word)
    num_left = len([*words_left])
    if num_left:
        raise ValueError(f"{num_left} of {len(words)} words have no tag")
    return builder.finish()


def with_lookahead(tokens: Sequence[str], words: Iterable[str]) -> list[str]:
    """Adds a lookahead of one word to the tokens of a tree; `words` has a text for each of its
    words."""
    tags = (token for token in tokens if not token.startswith((OPEN, CLOSE)))
    # In a tag's place comes the next word with its tag, before the brackets that precede it.
    reads = iter([*((READ + word, tag) for word, tag in zip(words, tags, strict=True)), (READ,)])
    with_words = [*next(reads)]  # the first word comes before all brackets
    for token in tokens:
        with_words += (token,) if token.startswith((OPEN, CLOSE)) else next(reads)
    return with_words


def without_lookahead(tokens: Iterable[str]) -> list[str]:
    """Inverse of `with_lookahead`."""
    tree_tokens: list[str] = []
    tag = None
    for token in tokens:
        if token.startswith(READ):  # the tag of the word before it is due
            if tag:
                tree_tokens.append(tag)
        elif token.startswith((OPEN, CLOSE)):
            tree_tokens.append(token)
        else:
            tag = token
    return tree_tokens

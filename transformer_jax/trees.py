"""A constituency tree. Nothing here recurses, so that a tree may be as deep as it likes."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tree:
    """A node with all that is below it: a leaf has a word, a constituent has children.

    Attributes:
      label: of a leaf the tag of its word; "" where there is none, as the Penn Treebank's outermost
        brackets have none.
      children: from left to right; at least one, or none of a leaf.
      word: of a leaf; None for a constituent.
    """

    label: str
    children: tuple["Tree", ...] = ()
    word: str | None = None

    def walk(self) -> Iterator["Tree | None"]:
        """The nodes, each before those below it, with None where a constituent ends."""
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
        """The words, from left to right."""
        return [word for word, _ in self.leaves()]

    def __str__(self) -> str:
        """The tree in brackets, on one line: (TOP (NP (DT The) (NN house)))."""
        parts = []
        for node in self.walk():
            if node is None:
                parts.append(")")
            else:
                parts.append(f" ({node.label}" + ("" if node.word is None else f" {node.word})"))
        return "".join(parts).removeprefix(" ")


class TreeBuilder:
    """A tree that grows from left to right. What would be no tree raises ValueError."""

    def __init__(self) -> None:
        self._open: list[tuple[str, list[Tree]]] = []
        self.tree: Tree | None = None
        """The whole tree, once it is grown."""

    @property
    def depth(self) -> int:
        """How many constituents are open."""
        return len(self._open)

    def open(self, label: str) -> None:
        """Begins a constituent."""
        self._require_place()
        self._open.append((label, []))

    def leaf(self, tag: str, word: str) -> None:
        """Adds a word."""
        self._require_place()
        self._add(Tree(tag, word=word))

    def close(self) -> None:
        """Ends the innermost open constituent."""
        if not self._open:
            raise ValueError("a bracket is closed that none opened")
        label, children = self._open.pop()
        if not children:
            raise ValueError(f"({label} ) is over no words")
        self._add(Tree(label, tuple(children)))

    def whole(self) -> Tree:
        """The tree; ValueError where it is not whole."""
        if self._open:
            raise ValueError(f"brackets that are not closed: {self.depth}")
        if self.tree is None:
            raise ValueError("no tree")
        return self.tree

    def _require_place(self) -> None:
        if self.tree is not None:
            raise ValueError("a second root behind the end of the tree")

    def _add(self, node: Tree) -> None:
        if self._open:
            self._open[-1][1].append(node)
        else:
            self.tree = node


def join_trees(parts: Sequence[Tree]) -> Tree:
    """One tree over the words of several: all they have below their roots, below the first root."""
    first, *others = parts
    if not others:
        return first
    children = [child for tree in parts for child in (tree.children or (tree,))]
    return Tree(first.label if first.children else "", tuple(children))


# FOLDED trees.brackets: Trees of the Penn Treebank's form, in brackets: (TOP (NP (DT The) (NN
# house))).


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
    growing = TreeBuilder()
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


def tree_line_spans(lines: Iterable[str]) -> Iterator[tuple[int, int]]:
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


# FOLDED trees.cleaning: What treebanks annotate and parsers do not predict: traces and function
# tags.


TRACE = "-NONE-"
"""The tag of an empty element, which stands for no word of the sentence."""

_FUNCTION = re.compile(r"[-=|].*")


def without_traces(tree: Tree) -> Tree | None:
    """The tree without leaves of tag -NONE-, and without what is empty then; None where nothing is
    left."""
    return _rebuilt(tree, lambda label: label, lambda leaf: leaf.label != TRACE)


def without_function_tags(tree: Tree) -> Tree:
    """NP-SBJ=1 becomes NP, and ADVP|PRT becomes ADVP; -LRB- and the tags of words stay."""
    found = _rebuilt(tree, _category, lambda leaf: True)
    assert found is not None
    return found


def _category(label: str) -> str:
    return label if label.startswith("-") else _FUNCTION.sub("", label)


def _rebuilt(
    tree: Tree, relabel: Callable[[str], str], keep: Callable[[Tree], bool]
) -> Tree | None:
    """The tree with other labels of its constituents, and without the leaves not kept."""
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


# FOLDED trees.linear: A tree as a sequence of tokens, which a sequence model can write (Vinyals et
# al. 2015). `(LABEL` begins a constituent and `)` ends one; between them stands the tag of each
# word. The words themselves are not written: they are the sentence's, in its order. (TOP (NP (DT
# The) (NN house))) -> (TOP (NP DT NN ) ) Vinyals et al. write `)LABEL`, which says nothing more,
# and XX for each tag; here tags are predicted too, so that a tree can be given back exactly. With
# a lookahead of one word, as a shift-reduce parser has it, each word `/word` and its tag stand
# before the brackets that part it from the word before; what is read last is `/`, the end: /The DT
# (TOP (NP /house NN / ) ) Who writes this need not count tags to know which word comes next.


OPEN, CLOSE = "(", ")"
"""What the token that begins a constituent starts with, and the token that ends one."""

READ = "/"
"""What the token of a word starts with, and by itself the end of the sentence."""


def tree_to_tokens(tree: Tree) -> list[str]:
    """The tokens of a tree."""
    return [
        CLOSE if node is None else (OPEN if node.word is None else "") + node.label
        for node in tree.walk()
    ]


def tree_from_tokens(tokens: Iterable[str], words: Sequence[str]) -> Tree:
    """The tree of its tokens and its words.

    Raises:
      ValueError: they are none.
    """
    growing, left = TreeBuilder(), iter(words)
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
      tokens: as `tree_to_tokens` gives them.
      words: what stands for each word.
    """
    tags = (token for token in tokens if not token.startswith((OPEN, CLOSE)))
    read = iter([*((READ + word, tag) for word, tag in zip(words, tags, strict=True)), (READ,)])
    found = [*next(read)]
    for token in tokens:
        found += (token,) if token.startswith((OPEN, CLOSE)) else next(read)
    return found


def without_lookahead(tokens: Iterable[str]) -> list[str]:
    """The tokens of `tree_to_tokens`, of what `with_lookahead` made of them."""
    found, tag = list[str](), None
    for token in tokens:
        if token.startswith(READ):
            found += [tag] if tag else []
        elif token.startswith((OPEN, CLOSE)):
            found.append(token)
        else:
            tag = token
    return found

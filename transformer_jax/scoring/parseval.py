"""Labelled precision, recall and F1 of constituency trees (Black et al. 1991), by EVALB's rules.

The rules are those of COLLINS.prm: roots (TOP) do not count, traces and punctuation are taken out
of both trees, with the constituents that are empty then, and PRT is ADVP. A constituent is its
label and the words that it spans; several alike count as often as they stand there.
"""

from collections import Counter
from collections.abc import Sequence

from transformer_jax.trees import Tree, parse_tree

ROOTS = ("TOP", "", "ROOT", "S1")
"""Labels that do not count: COLLINS.prm's, and what other treebanks and parsers write for it."""

DELETED_TAGS = ("-NONE-", ",", ":", "``", "''", ".")
"""Words of these tags are taken out."""

METRICS = ("f1", "precision", "recall", "exact_match", "tag_accuracy")

_SAME = {"PRT": "ADVP"}

Span = tuple[str, int, int]


def parseval(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Scores of trees in brackets, over all of them together and as shares of 1.

    Which words are taken out, the references decide. (EVALB asks each tree's own tags, and leaves
    out the sentences in which they disagree.)

    Args:
      outputs, references: trees over the same words.

    Returns:
      "precision" and "recall" of the outputs' constituents, their harmonic mean "f1",
      "exact_match", the share of outputs whose constituents are all those of the reference, and
      "tag_accuracy" of the words that are not taken out; 0 where there is nothing to count.

    Raises:
      ValueError: there are none, not as many of one as of the other, a text is no tree, or a tree
        is over other words than its reference.
    """
    if not outputs:
        raise ValueError("no trees to score")
    matched = found = expected = exact = right = words = 0
    for number, texts in enumerate(zip(outputs, references, strict=True), 1):
        output, reference = map(parse_tree, texts)
        if output.words() != reference.words():
            raise ValueError(f"tree {number} is over other words than its reference")
        kept = [tag not in DELETED_TAGS for _, tag in reference.leaves()]
        of_output, of_reference = constituents(output, kept), constituents(reference, kept)
        matched += (of_output & of_reference).total()
        found, expected = found + of_output.total(), expected + of_reference.total()
        exact += of_output == of_reference
        leaves = zip(kept, output.leaves(), reference.leaves(), strict=True)
        same = [one == other for keep, one, other in leaves if keep]
        right, words = right + sum(same), words + len(same)
    return {
        "f1": _share(2 * matched, found + expected),
        "precision": _share(matched, found),
        "recall": _share(matched, expected),
        "exact_match": exact / len(outputs),
        "tag_accuracy": _share(right, words),
    }


def constituents(tree: Tree, kept: Sequence[bool]) -> Counter[Span]:
    """How often each (label, first word, word behind the last) stands in a tree, by the numbers of
    the words kept; without roots, and what is empty."""
    spans, open_nodes = Counter[Span](), list[tuple[str, int]]()
    place, keep = 0, iter(kept)
    for node in tree.walk():
        if node is None:
            label, start = open_nodes.pop()
            if start < place and label not in ROOTS:
                spans[_SAME.get(label, label), start, place] += 1
        elif node.word is None:
            open_nodes.append((node.label, place))
        else:
            place += next(keep)
    return spans


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

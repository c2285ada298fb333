# SPDX-License-Identifier: Apache-2.0
"""Labelled precision, recall and F1 of constituency trees (Black et al. 1991), by EVALB's rules.

The rules are those of COLLINS.prm: roots (TOP) do not count; traces and punctuation are removed
from both trees, with the constituents that this leaves empty; labels end at the first - or =, so
that NP-SBJ and NP=2 equal NP; PRT equals ADVP. A constituent is a label and the words that it
spans. Equal constituents of a tree count as often as they occur.
"""

import re
from collections import Counter
from collections.abc import Sequence

from transformer_jax.scoring.text import require_pairs
from transformer_jax.trees import Tree, parse_tree

ROOTS = ("TOP", "", "ROOT", "S1")
"""Labels that do not count: that of COLLINS.prm, and those of other treebanks and parsers."""

DELETED_TAGS = ("-NONE-", ",", ":", "``", "''", ".")
"""Tags of the words that are removed."""

_EQUIVALENT = {"PRT": "ADVP"}
_FUNCTION = re.compile("[-=].*")

Span = tuple[str, int, int]


def parseval(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Corpus scores of trees in brackets, 0 to 1.

    The tags of the references decide which words are removed. (EVALB uses each tree's own tags, and
    skips the sentences where they disagree.)

    Returns:
      "precision" and "recall" of the outputs' constituents, their harmonic mean "f1",
      "exact_match", the share of outputs with exactly the constituents of the reference, and
      "tag_accuracy" of the words that are not removed; 0 if there is nothing to count.

    Raises:
      ValueError: as of `require_pairs`, a text is no tree, or a tree is over other words than its
        reference.
    """
    require_pairs(outputs, references)
    matched = in_outputs = in_references = exact = right = words = 0
    for number, texts in enumerate(zip(outputs, references, strict=True), 1):
        output, reference = map(parse_tree, texts)
        if output.words() != reference.words():
            raise ValueError(f"tree {number} is over other words than its reference")
        is_counted = [tag not in DELETED_TAGS for _, tag in reference.leaves()]
        output_spans = constituents(output, is_counted)
        reference_spans = constituents(reference, is_counted)
        matched += (output_spans & reference_spans).total()
        in_outputs += output_spans.total()
        in_references += reference_spans.total()
        exact += output_spans == reference_spans
        leaves = zip(is_counted, output.leaves(), reference.leaves(), strict=True)
        same_tag = [leaf == expected for counted, leaf, expected in leaves if counted]
        right += sum(same_tag)
        words += len(same_tag)
    return {
        "f1": _share(2 * matched, in_outputs + in_references),
        "precision": _share(matched, in_outputs),
        "recall": _share(matched, in_references),
        "exact_match": exact / len(outputs),
        "tag_accuracy": _share(right, words),
    }


def constituents(tree: Tree, kept: Sequence[bool]) -> Counter[Span]:
    """Counts of each (label, first word, word after the last) of a tree. Words are numbered among
    those that are kept; roots and empty constituents are left out."""
    spans: Counter[Span] = Counter()
    open_nodes: list[tuple[str, int]] = []  # label and first word
    position = 0
    keep = iter(kept)
    for node in tree.walk():
        if node is None:
            label, start = open_nodes.pop()
            if not label.startswith("-"):  # EVALB cuts -LRB- to nothing
                label = _FUNCTION.sub("", label)
            if start < position and label not in ROOTS:
                spans[_EQUIVALENT.get(label, label), start, position] += 1
        elif node.word is None:
            open_nodes.append((node.label, position))
        else:
            position += next(keep)
    return spans


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

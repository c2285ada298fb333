"""ROUGE of summaries: which words, and pairs of words, they share with the references."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise


def rouge(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """{"rouge1", "rouge2", "rougeL"}: the F1 of shared words, of shared pairs of neighbouring words
    and of the longest common subsequence of words, 0 to 1, each the mean over texts (Lin 2004).

    Words are runs of letters and digits of any script, in lower case and without stemming; on
    English text that is what Google's rouge_score counts.

    Raises:
      ValueError: there are none, or not as many of one as of the other.
    """
    if not outputs:
        raise ValueError("no outputs to compare")
    totals = dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0.0)
    for output, reference in zip(outputs, references, strict=True):
        a, b = _words(output), _words(reference)
        totals["rouge1"] += _f1(_shared(a, b), len(a), len(b))
        totals["rouge2"] += _f1(_shared(pairwise(a), pairwise(b)), len(a) - 1, len(b) - 1)
        totals["rougeL"] += _f1(common_subsequence(a, b), len(a), len(b))
    return {name: total / len(outputs) for name, total in totals.items()}


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _shared(a: Iterable[object], b: Iterable[object]) -> int:
    return (Counter(a) & Counter(b)).total()


def common_subsequence(a: Sequence[object], b: Sequence[object]) -> int:
    """The length of the longest sequence whose elements both have in this order."""
    row = [0] * (len(b) + 1)
    for x in a:
        above, row = row, [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
    return row[-1]


def _f1(shared: int, of_output: int, of_reference: int) -> float:
    return 2 * shared / (of_output + of_reference) if shared else 0.0

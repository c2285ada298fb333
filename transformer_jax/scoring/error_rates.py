"""Edits that would turn outputs into their references, for each word or character of these."""

from collections.abc import Sequence
from typing import Any


def word_error_rate(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """{"wer", "cer"}: words, and characters, to insert, delete or replace (Levenshtein 1966), as a
    share of all in the references. 0 is best; outputs that are too long may go beyond 1.

    White space separates words, and one space stands for it among characters.

    Raises:
      ValueError: there are no outputs, other than references, or these have no words.
    """
    words = [(a.split(), b.split()) for a, b in zip(outputs, references, strict=True)]
    texts = [(" ".join(a), " ".join(b)) for a, b in words]
    if not any(reference for _, reference in words):
        raise ValueError("the references have no words to compare with")
    return {"wer": _rate(words), "cer": _rate(texts)}


def _rate(pairs: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> float:
    return sum(edits(a, b) for a, b in pairs) / sum(len(b) for _, b in pairs)


def edits(output: Sequence[Any], reference: Sequence[Any]) -> int:
    """The fewest insertions, deletions and replacements that make one sequence the other."""
    row = list(range(len(reference) + 1))  # of the output so far and each start of the reference
    for i, x in enumerate(output, 1):
        above, row = row, [i]
        for j, y in enumerate(reference):
            row.append(min(above[j] + (x != y), above[j + 1] + 1, row[j] + 1))
    return row[-1]


def translation_edit_rate(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """{"ter", "ter_signature"}: the same where moving a phrase is one edit, in percent of the
    references' words, by sacreBLEU (Snover et al. 2006); raises as `word_error_rate`."""
    # Imported here so that a process that only predicts starts without it.
    from sacrebleu.metrics import TER

    if len(outputs) != len(references):
        raise ValueError(f"{len(outputs)} outputs but {len(references)} references")
    if not any(reference.split() for reference in references):
        raise ValueError("the references have no words to compare with")
    ter = TER()
    score = ter.corpus_score(list(outputs), [list(references)]).score
    return {"ter": score, "ter_signature": str(ter.get_signature())}

# SPDX-License-Identifier: Apache-2.0
"""Metrics of text outputs: BLEU, chrF, exact match, word error rate, TER and ROUGE.

BLEU, chrF and TER are computed by sacreBLEU, so they are comparable with published numbers.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

Texts = Sequence[str]


def require_pairs(outputs: Sequence[Any], references: Sequence[Any]) -> None:
    """Raises ValueError unless there are as many outputs as references, and one at least."""
    if not outputs or len(outputs) != len(references):
        raise ValueError(
            f"{len(outputs)} outputs cannot be scored against {len(references)} references"
        )


def score_translations(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Corpus scores, 0 to 100, of detokenized translations with one reference each.

    Returns:
      "bleu": sacreBLEU, cased, 13a tokenization (Papineni et al. 2002; Post 2018); "signature": the
      settings and version that make it comparable; "bleu_lowercase": the same with case ignored;
      "chrf": chrF2 (Popović 2015).

    Raises:
      ValueError: as of `require_pairs`.
    """
    # Imported here so that a process that only predicts starts without it.
    from sacrebleu.metrics import BLEU, CHRF

    require_pairs(hypotheses, references)
    lines = list(hypotheses)
    streams = [list(references)]
    bleu = BLEU(tokenize="13a")
    score = bleu.corpus_score(lines, streams).score
    # `force` only avoids a second warning about text that looks tokenized.
    lowercase = BLEU(tokenize="13a", lowercase=True, force=True).corpus_score(lines, streams).score
    return {
        "bleu": score,
        "bleu_lowercase": lowercase,
        "chrf": CHRF().corpus_score(lines, streams).score,
        "signature": str(bleu.get_signature()),
    }


def exact_match(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Share of outputs that equal their references, {"exact_match"}. Runs of white space count as
    one space. Raises ValueError as of `require_pairs`."""
    require_pairs(outputs, references)
    pairs = zip(outputs, references, strict=True)
    return {"exact_match": sum(a.split() == b.split() for a, b in pairs) / len(outputs)}


def word_error_rate(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Word and character error rates, {"wer", "cer"}.

    They are the insertions, deletions and replacements needed (Levenshtein 1966), divided by the
    number of words or characters of the references. 0 is best; long outputs may exceed 1. Any white
    space separates words, and counts as one character.

    Raises:
      ValueError: as of `require_pairs`, or the references have no words.
    """
    require_pairs(outputs, references)
    words = [(a.split(), b.split()) for a, b in zip(outputs, references, strict=True)]
    texts = [(" ".join(a), " ".join(b)) for a, b in words]
    if not any(reference for _, reference in words):
        raise ValueError("the references have no words to compare with")
    return {"wer": _rate(words), "cer": _rate(texts)}


def _rate(pairs: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> float:
    return sum(edits(a, b) for a, b in pairs) / sum(len(b) for _, b in pairs)


def edits(output: Sequence[Any], reference: Sequence[Any]) -> int:
    """Edit distance: fewest insertions, deletions and replacements between two sequences."""
    row = list(range(len(reference) + 1))  # to each prefix of the reference
    for i, x in enumerate(output, 1):
        above = row
        row = [i]
        for j, y in enumerate(reference):
            row.append(min(above[j] + (x != y), above[j + 1] + 1, row[j] + 1))
    return row[-1]


def translation_edit_rate(outputs: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Translation edit rate (Snover et al. 2006), {"ter", "ter_signature"}: like the word error
    rate, but moving a phrase is one edit; in percent. Raises as `word_error_rate`."""
    # Imported here so that a process that only predicts starts without it.
    from sacrebleu.metrics import TER

    require_pairs(outputs, references)
    if not any(reference.split() for reference in references):
        raise ValueError("the references have no words to compare with")
    ter = TER()
    score = ter.corpus_score(list(outputs), [list(references)]).score
    return {"ter": score, "ter_signature": str(ter.get_signature())}


def rouge(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """ROUGE of summaries (Lin 2004), {"rouge1", "rouge2", "rougeL"}, 0 to 1.

    They are the F1 of shared words, of shared bigrams, and of the longest common subsequence of
    words, each averaged over texts. Words are runs of letters and digits of any script with their
    marks, in lower case and without stemming; on English text the values equal those of Google's
    rouge_score.

    Raises:
      ValueError: as of `require_pairs`.
    """
    require_pairs(outputs, references)
    totals = dict.fromkeys(("rouge1", "rouge2", "rougeL"), 0.0)
    for output, reference in zip(outputs, references, strict=True):
        a = _words(output)
        b = _words(reference)
        totals["rouge1"] += _f1(_shared(a, b), len(a), len(b))
        totals["rouge2"] += _f1(_shared(pairwise(a), pairwise(b)), len(a) - 1, len(b) - 1)
        totals["rougeL"] += _f1(common_subsequence(a, b), len(a), len(b))
    return {name: total / len(outputs) for name, total in totals.items()}


def _words(text: str) -> list[str]:
    # `\w` has no marks, such as the vowels of Hindi, and would split a word at each.
    letters = (char if unicodedata.category(char)[0] in "LMN" else " " for char in text.lower())
    return "".join(letters).split()


def _shared(a: Iterable[object], b: Iterable[object]) -> int:
    return (Counter(a) & Counter(b)).total()


def common_subsequence(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = row
        row = [0]
        for j, y in enumerate(b):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
    return row[-1]


def _f1(shared: int, output_size: int, reference_size: int) -> float:
    return 2 * shared / (output_size + reference_size) if shared else 0.0

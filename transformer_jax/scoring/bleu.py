"""BLEU and chrF of translations, by sacreBLEU: comparable with published numbers."""

from collections.abc import Sequence
from typing import Any


def score_translations(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Corpus scores, 0 to 100, of detokenized translations with one reference each.

    Returns:
      "bleu": sacreBLEU, cased, 13a tokenization (Papineni et al. 2002; Post 2018); "signature": the
      settings and version that make it comparable; "bleu_lowercase": the same with case ignored;
      "chrf": chrF2 (Popović 2015).

    Raises:
      ValueError: there is nothing to score, or the numbers of lines differ.
    """
    # Imported here so that a process that only predicts starts without it.
    from sacrebleu.metrics import BLEU, CHRF

    if len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} translations cannot be scored against {len(references)} references"
        )
    if not hypotheses:
        raise ValueError("there are no translations to score")
    lines, streams = list(hypotheses), [list(references)]
    bleu = BLEU(tokenize="13a")
    score = bleu.corpus_score(lines, streams).score
    # `force` only keeps the warning about text that looks tokenized from coming twice.
    lowercase = BLEU(tokenize="13a", lowercase=True, force=True).corpus_score(lines, streams).score
    return {
        "bleu": score,
        "bleu_lowercase": lowercase,
        "chrf": CHRF().corpus_score(lines, streams).score,
        "signature": str(bleu.get_signature()),
    }

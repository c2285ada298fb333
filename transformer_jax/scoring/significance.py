# SPDX-License-Identifier: Apache-2.0
"""Paired tests of corpus scores: two systems' outputs for the same examples."""

import contextlib
import logging
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.scoring import Score
from transformer_jax.scoring.text import Texts, require_pairs

_TRIALS = 1000
_LEVEL = 0.05
_SACREBLEU = ("bleu", "chrf", "ter", "bleu_lowercase")
_IGNORE_CASE = ("ter", "bleu_lowercase")


class PairedScores(NamedTuple):
    """Scores of two systems on one test set, and the test of their difference.

    Attributes:
      first, second: scores of the systems.
      p: two-sided p-value of approximate randomization (Riezler and Maxwell 2005).
      test: name and settings of the tests.
      interval: 95% interval of the difference; None, as the next three, if it is not computed.
      first_interval, second_interval: 95% intervals by bootstrap over the examples.
      p_bootstrap: p-value of paired bootstrap resampling (Koehn 2004).
    """

    metric: str
    first: float
    second: float
    p: float
    test: str
    interval: tuple[float, float] | None = None
    first_interval: tuple[float, float] | None = None
    second_interval: tuple[float, float] | None = None
    p_bootstrap: float | None = None

    @property
    def difference(self) -> float:
        """Score of the second system minus that of the first."""
        return self.second - self.first

    @property
    def differs(self) -> bool:
        """Returns True if the test finds a difference at the level 0.05."""
        return self.p < _LEVEL


def translation_significance(first: Texts, second: Texts, references: Texts) -> list[PairedScores]:
    """BLEU with and without case, chrF and TER of two systems by sacreBLEU's paired tests.

    Raises:
      ValueError: as of `require_pairs`.
    """
    for outputs in (first, second):
        require_pairs(outputs, references)
    # Imported here so that a process that only predicts starts without it.
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [("first", list(first)), ("second", list(second))]
    metrics: list[Any] = [BLEU(), CHRF(), TER(), BLEU(lowercase=True)]
    tests: list[PairedScores] = []
    for name, metric in zip(_SACREBLEU, metrics, strict=True):
        with _quiet("sacrebleu"):
            # Approximate randomization and bootstrap. Both kinds of BLEU have one name in
            # sacreBLEU, so each metric has a test of its own.
            results: list[Any] = [
                PairedTest(systems, {name: metric}, [list(references)], kind, _TRIALS)()
                for kind in ("ar", "bs")
            ]
        (signatures, randomized), (_, resampled) = results
        ((label, signature),) = signatures.items()
        normalize: Callable[[str], str] = str.lower if name in _IGNORE_CASE else str
        num_different = sum(map(operator.ne, map(normalize, first), map(normalize, second)))
        first_score, second_score = (float(result.score) for result in randomized[label])
        first_interval, second_interval = (
            (float(result.mean - result.ci), float(result.mean + result.ci))
            for result in resampled[label]
        )
        # sacreBLEU counts the exchanges with a larger difference than the observed one, not those
        # with the same: all of the d differing examples exchanged, or none, 2 of 2^d. Two systems
        # that differ in one example would have the p-value 0.001, as would equal scores.
        p = min(float(randomized[label][1].p_value) + 2.0 ** (1 - num_different), 1.0)
        p_bootstrap = float(resampled[label][1].p_value)
        if first_score == second_score:
            p = p_bootstrap = 1.0
        tests.append(
            PairedScores(
                name,
                first_score,
                second_score,
                p,
                f"approximate randomization, {signature}",
                first_interval=first_interval,
                second_interval=second_interval,
                p_bootstrap=p_bootstrap,
            )
        )
    return tests


def randomized_significance(
    score: Callable[[Sequence[Any]], float],
    first: Sequence[Any],
    second: Sequence[Any],
    metric: str,
    trials: int = _TRIALS,
) -> PairedScores:
    """Approximate randomization of any corpus score: outputs of random examples are exchanged.

    Args:
      score: outputs of all examples -> score.
      trials: number of exchanges.
    """
    rng = np.random.default_rng(0)
    first_score = score(first)
    second_score = score(second)
    observed = abs(second_score - first_score) - 1e-12  # minus rounding errors
    extreme = 0
    for _ in range(trials):
        swaps = rng.integers(0, 2, len(first)).astype(bool)
        a = [y if swap else x for x, y, swap in zip(first, second, swaps, strict=True)]
        b = [x if swap else y for x, y, swap in zip(first, second, swaps, strict=True)]
        extreme += abs(score(b) - score(a)) >= observed
    p = (extreme + 1) / (trials + 1)  # the observed outputs are one of the exchanges
    name = f"approximate randomization, {trials} trials"
    return PairedScores(metric, first_score, second_score, p, name)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Context: inside, a library's logger shows only errors."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def compare_outputs(
    metric: str, score: Score, first: Texts, second: Texts, references: Texts
) -> list[PairedScores]:
    """Paired tests of an entry of `scoring.METRICS`, or of another corpus score with its name."""
    if metric in _SACREBLEU:
        return translation_significance(first, second, references)

    def score_outputs(outputs: Sequence[str]) -> float:
        return float(score(outputs, references)[metric])

    return [randomized_significance(score_outputs, first, second, metric)]

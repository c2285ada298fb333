# SPDX-License-Identifier: Apache-2.0
"""The decision on a proposal, and the error rate of all decisions of a night."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from transformer_jax.scoring import sequential

LOOKS = (1, 2, 4, 9, 15)
_WINS = 0.8
"""A proposal continues if it wins this share of all comparisons of its seeds with the baseline's
(half of them without an effect, 0.76 with one of a deviation), or more of the pairs. Refusals
promote nothing, so that they cost no error."""
_PLANNED = 0.8
"""Share of the error rate that the planned proposals get."""

CONTROLS = ("alpha_spending", "false_discoveries")
"""What the error rate of a night bounds: the probability of any false promotion, or the expected
share of false promotions among all."""


class ErrorControl(NamedTuple):
    """Gives each proposal of a night its level, so that all together keep an error rate.

    "alpha_spending": the levels sum to the rate. The probability of any false promotion is at most
    the rate, whatever the proposals have in common (Bonferroni).

    "false_discoveries": the same levels times the number of promotions so far, at least 1: LOND
    (Javanmard and Montanari 2018) in the form of Zrnic, Ramdas and Jordan (2021), which keeps the
    rate for tests that depend positively on each other, as tests against one baseline do.

    Attributes:
      kind: an entry of `CONTROLS`.
      error_rate: of the night.
      proposals: planned number of proposals. These have equal levels; more are tested at levels
        that fall with the square of their number, so that a night needs no end.
    """

    kind: str
    error_rate: float
    proposals: int = 100

    def level(self, number: int, outcomes: Sequence[bool | None]) -> float:
        """Level of a test.

        Args:
          number: of the test, from 0. A proposal that is refused before it trains needs none.
          outcomes: of the tests that began before it: True if promoted, None if still open.
        """
        if number < self.proposals:
            share = _PLANNED / self.proposals
        else:  # the sum of 1 / (n * (n + 1)) from n = proposals on is 1 / proposals
            share = (1 - _PLANNED) * self.proposals / (number * (number + 1))
        promotions = sum(outcome is True for outcome in outcomes)
        factor = max(1, promotions) if self.kind == "false_discoveries" else 1
        return self.error_rate * share * factor


class Judgements(NamedTuple):
    """Judgements on proposals, each an array [...].

    Attributes:
      promotes, refuses: where both are False, more seeds decide.
      gain: median difference of a seed of the proposal from one of the baseline, or the nearest
        number in the interval.
      low, high: interval of the gain, valid at all looks of the proposal together: each side is
        exceeded with at most the probability `level`.
    """

    promotes: np.ndarray
    refuses: np.ndarray
    gain: np.ndarray
    low: np.ndarray
    high: np.ndarray


def judge(
    values: np.ndarray,
    baseline: np.ndarray,
    level: ArrayLike,
    smallest: float,
    looks: Sequence[int] = LOOKS,
) -> Judgements:
    """Promotes proposals, refuses them, or continues with more seeds.

    A proposal is promoted if the interval of its gain is above 0 and the gain at least `smallest`.
    It is refused if it gains less than half of `smallest`, or the looks are over, or it wins fewer
    than four of five comparisons of its seeds with all of the baseline's and no more of the pairs;
    one pair is not enough for that.

    Two tests share the level equally. The rank test of the proposal's seeds against all of the
    baseline's is exact whatever the distribution, with ties and runs that diverged, if a proposal
    without an effect has the distribution of the baseline. The t-test of the paired differences
    uses what a seed has in common in both, and is left out where differences tie or are infinite.

    Args:
      values: [..., seeds], of a proposal's first seeds, as `oriented` returns them.
      baseline: [..., seeds], the proposal's seeds first; the same number at all looks.
      level: [...], of a proposal (`ErrorControl.level`); looks get shares in proportion to their
        seeds.
      smallest: smallest difference of interest.
      looks: numbers of seeds of all looks.
    """
    count = values.shape[-1]
    # Half for each test; later looks decide more, and get more.
    share = np.asarray(level) / 2 * count / sum(looks)
    pairs = sequential.paired_differences(values, baseline[..., :count])
    differences = sequential.paired_differences(values[..., :, None], baseline[..., None, :])
    differences = differences.reshape(*values.shape[:-1], -1)
    low, high = sequential.interval_of_shift(differences, count, share)
    is_behind = _share_of_wins(differences) < _WINS
    if count > 1:
        is_behind &= _share_of_wins(pairs) <= _WINS
        by_mean = np.isfinite(pairs).all(-1) & ~sequential.has_ties(pairs)
        with np.errstate(invalid="ignore"):  # of infinite differences
            low_mean, high_mean = sequential.interval_of_mean(pairs, share)
        low = np.where(by_mean, np.maximum(low, low_mean), low)
        high = np.where(by_mean, np.minimum(high, high_mean), high)
    # Pairs may know better than the median of all comparisons, which has other seeds on each side.
    gain = np.clip(np.median(differences, -1), low, high)
    promotes = (low > 0) & (gain >= smallest)
    is_over = is_behind | (gain < smallest / 2) | (count >= looks[-1])
    return Judgements(promotes, ~promotes & is_over, gain, low, high)


def _share_of_wins(differences: np.ndarray) -> np.ndarray:
    """Share of the differences [..., n] that are above 0; a tie counts half."""
    return (1 + np.sign(differences)).mean(-1) / 2

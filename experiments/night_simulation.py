# SPDX-License-Identifier: Apache-2.0
"""False promotions, improvements found and trainings of drawn nights.

    python experiments/night_simulation.py --nights=10000

A night has a hundred proposals; a share of them improves the baseline. Values have the deviation 1
over seeds, and higher ones are better. Decisions are those of `lab.night.decision`, for all nights
at once. Beside them are two rules in use: "keep if better" trains a proposal once and keeps it if
it is better than the run that was kept last; "screen, then 8 seeds" trains once, and if that run is
better than the mean of the baseline, seven times more and keeps it if a paired t-test has p < 0.05.
"""

import argparse
import dataclasses
import itertools
import math
import sys
import time
from collections.abc import Callable

import numpy as np

from transformer_jax.lab.night.decision import LOOKS, ErrorControl, Judgements, judge
from transformer_jax.scoring.sequential import (
    interval_of_mean,
    interval_of_shift,
    paired_differences,
)

ERROR_RATE = 0.05
SEEDS = LOOKS[-1]

type Shape = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _log_normal(normal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Skewed to the right, with deviation 1."""
    return np.exp(normal) / math.sqrt((math.e - 1) * math.e)


def _some_diverged(normal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(rng.random(normal.shape) < 0.1, -np.inf, normal)


SHAPES: dict[str, Shape] = {
    "normal": lambda normal, rng: normal,
    "log-normal, long tail of better values": _log_normal,
    "log-normal, long tail of worse values": lambda normal, rng: -_log_normal(normal, rng),
    "ties (rounded to a deviation)": lambda normal, rng: np.round(normal),
    "one run in ten diverges": _some_diverged,
}


@dataclasses.dataclass(frozen=True)
class Night:
    """What a night is drawn from, and how it decides.

    Attributes:
      rule: "alpha_spending", "false_discoveries", "keep if better" or "screen, then 8 seeds".
      share: of the proposals that improve the baseline.
      effect: of these, in deviations over seeds.
      smallest: smallest difference of interest.
      correlation: of the normal values of a seed in baseline and proposal.
      shape: entry of `SHAPES`.
      width: deviation of the proposals without an effect.
      proposals: number of proposals; the error control plans for a hundred.
      tests: "both", or only the "pairs" or the "ranks".
    """

    rule: str = "alpha_spending"
    share: float = 0.1
    effect: float = 2.0
    smallest: float = 0.0
    correlation: float = 0.0
    shape: str = "normal"
    width: float = 1.0
    proposals: int = 100
    tests: str = "both"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Counts of each night, arrays [nights]."""

    improvements: np.ndarray
    found: np.ndarray
    false: np.ndarray
    runs: np.ndarray

    @property
    def any_false(self) -> float:
        """Share of nights with a false promotion."""
        return float((self.false > 0).mean())

    @property
    def false_share(self) -> float:
        """Mean share of false promotions among all of a night."""
        return float((self.false / np.maximum(1, self.false + self.found)).mean())

    @property
    def power(self) -> float:
        """Share of the improvements that were promoted."""
        improvements = self.improvements.sum()
        return float(self.found.sum() / improvements) if improvements else math.nan


def simulate(night: Night, nights: int, rng: np.random.Generator) -> Outcome:
    """Draws nights, with values relative to the present baseline."""
    shape = SHAPES[night.shape]
    normal = rng.standard_normal((nights, SEEDS))
    baseline = shape(normal, rng)
    decide = {"keep if better": _keep_if_better, "screen, then 8 seeds": _screen}.get(night.rule)
    trained = {"keep if better": 1, "screen, then 8 seeds": 8}.get(night.rule, SEEDS)
    counts = {name: np.zeros(nights, int) for name in ("improvements", "found", "false")}
    runs = np.full(nights, trained)
    promotions = np.zeros(nights, int)
    for number in range(night.proposals):
        improves = rng.random(nights) < night.share
        noise = rng.standard_normal((nights, SEEDS)) * math.sqrt(1 - night.correlation**2)
        latent = night.correlation * normal + noise
        width = np.where(improves, 1.0, night.width)[:, None]
        values = shape(latent, rng) * width + night.effect * improves[:, None]
        if decide is None:
            is_promoted, spent = _decide(night, values, baseline, number, promotions)
        else:
            is_promoted, spent = decide(values, baseline)
        promotions += is_promoted
        counts["improvements"] += improves
        counts["found"] += is_promoted & improves
        counts["false"] += is_promoted & ~improves
        if night.rule == "keep if better":
            # The run that is kept is the next baseline; the effect moves the zero.
            kept = values[:, :1] - night.effect * improves[:, None]
            baseline[:, :1] = np.where(is_promoted[:, None], kept, baseline[:, :1])
        else:
            spent = spent + trained * is_promoted
            fresh = rng.standard_normal((nights, SEEDS))
            normal = np.where(is_promoted[:, None], fresh, normal)
            baseline = np.where(is_promoted[:, None], shape(fresh, rng), baseline)
        runs += spent
    return Outcome(runs=runs, **counts)


def _decide(
    night: Night, values: np.ndarray, baseline: np.ndarray, number: int, promotions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Whether each proposal is promoted, and its number of runs."""
    control = ErrorControl(night.rule, ERROR_RATE)
    levels = [control.level(number, [True] * count) for count in range(promotions.max() + 1)]
    level = np.array(levels)[promotions]
    is_promoted = np.zeros(len(values), bool)
    runs = np.zeros(len(values), int)
    open_nights = np.arange(len(values))
    for count in LOOKS:
        runs[open_nights] = count
        judgements = _judge(
            night, values[open_nights, :count], baseline[open_nights], level[open_nights]
        )
        is_promoted[open_nights] = judgements.promotes
        open_nights = open_nights[~judgements.promotes & ~judgements.refuses]
        if not len(open_nights):
            break
    return is_promoted, runs


def _judge(night: Night, values: np.ndarray, baseline: np.ndarray, level: np.ndarray) -> Judgements:
    if night.tests == "both":
        return judge(values, baseline, level, night.smallest)
    count = values.shape[-1]
    judgements = judge(values, baseline, 0.0, night.smallest)  # what is refused, nothing promoted
    share = level * count / sum(LOOKS)
    if night.tests == "ranks":
        differences = paired_differences(values[:, :, None], baseline[:, None, :])
        low, _ = interval_of_shift(differences.reshape(len(values), -1), count, share)
    elif count == 1:
        low = np.full(len(values), -np.inf)
    else:
        low, _ = interval_of_mean(values - baseline[:, :count], share)
    promotes = (low > 0) & (judgements.gain >= night.smallest)
    return judgements._replace(promotes=promotes, refuses=judgements.refuses & ~promotes)


def _keep_if_better(values: np.ndarray, baseline: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return values[:, 0] > baseline[:, 0], np.ones(len(values), int)


def _screen(values: np.ndarray, baseline: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    passes = values[:, 0] > baseline[:, :8].mean(1)
    low, _ = interval_of_mean(paired_differences(values[:, :8], baseline[:, :8]), ERROR_RATE)
    return passes & (low > 0), np.where(passes, 8, 1)


def tables() -> dict[str, dict[str, Night]]:
    """The nights of each row, by the titles of tables."""
    controls = ("alpha_spending", "false_discoveries")
    rules = (*controls, "keep if better", "screen, then 8 seeds")
    by_shape = {
        f"By distribution: {title}": {
            f"{shape}, {rule}": Night(rule, share=share, shape=shape)
            for shape, rule in itertools.product(SHAPES, controls)
            if shape != "normal"
        }
        for share, title in ((0.0, "no effects"), (0.1, "one in ten by two deviations"))
    }
    return {
        "No proposal has an effect": {rule: Night(rule, share=0.0) for rule in rules},
        "One proposal in ten improves by two deviations": {rule: Night(rule) for rule in rules},
        "By effect and smallest difference of interest (alpha_spending)": {
            f"effect {effect:g}, smallest {smallest:g}": Night(effect=effect, smallest=smallest)
            for effect, smallest in itertools.product((1.0, 2.0), (0.0, 0.5, 1.0, 2.0))
        },
        "By correlation of the values of a seed (alpha_spending)": {
            f"effect {effect:g}, correlation {r:g}": Night(effect=effect, correlation=r)
            for effect, r in itertools.product((1.0, 2.0), (0.0, 0.5, 0.7, 0.9))
        },
        "By the test: of pairs, of ranks, or both at half the level": {
            f"{tests}, correlation {r:g}": Night(tests=tests, correlation=r)
            for tests, r in itertools.product(("pairs", "ranks", "both"), (0.0, 0.7))
        },
        **by_shape,
        "Beyond the assumptions": {
            "300 proposals where 100 were planned": Night(share=0.0, proposals=300),
            "proposals without effect have half the deviation": Night(share=0.0, width=0.5),
            "proposals without effect have twice the deviation": Night(share=0.0, width=2.0),
            "the same, tests of pairs only": Night(share=0.0, width=2.0, tests="pairs"),
        },
    }


def line(name: str, night: Night, nights: int) -> str:
    """Row of a table."""
    outcome = simulate(night, nights, np.random.default_rng(1))
    found = "" if math.isnan(outcome.power) else f"{outcome.power:.1%}"
    cost = outcome.runs.mean() / (night.proposals + 1)
    cells = (
        *(name, f"{outcome.any_false:.2%}", f"{outcome.false.mean():.2f}"),
        *(f"{outcome.found.mean():.2f}", f"{outcome.false_share:.2%}", found, f"{cost:.2f}"),
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nights", type=int, default=10_000)
    nights = parser.parse_args().nights
    head = ("", "any false", "false", "right", "share of false", "found", "trainings")
    for title, rows in tables().items():
        print(f"\n## {title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}", flush=True)
        for name, night in rows.items():
            print(line(name, night, nights), flush=True)
        print(f"{title}: {time.process_time():.0f} s of CPU", file=sys.stderr)


if __name__ == "__main__":
    main()

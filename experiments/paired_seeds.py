# SPDX-License-Identifier: Apache-2.0
"""What pairs of seeds share in the stored claims, and how much more a test of pairs finds.

python experiments/paired_seeds.py
"""

import json
import math
from pathlib import Path

import numpy as np
from scipy import stats

CLAIMS = Path(__file__).parent / "results" / "claims"
METRICS = ("loss", "bleu")
MOST_APART = 3
"""Rows whose deviations differ more than so many times are left out: one of them hardly varies, and
pairs can explain nothing."""
LEVEL = 0.05
DRAWS = 40_000


def shared() -> dict[str, tuple[int, float, float]]:
    """Claim -> number of pairs, correlation, and variance of the differences of pairs over that of
    independent seeds."""
    claims = {}
    for path in sorted(CLAIMS.glob("*.json")):
        verdict = json.loads(path.read_text(encoding="utf-8"))
        trains_two_rows = len(verdict["configs"]) == 2  # not one row, decoded in two ways
        if not trains_two_rows or verdict["metric"].partition(" (")[0] not in METRICS:
            continue
        first, second = np.array([*verdict["values"].values()], float)
        deviations = np.std([first, second], axis=1, ddof=1)
        if deviations.max() > MOST_APART * deviations.min():
            continue
        ratio = np.var(second - first, ddof=1) / (deviations**2).sum()
        claims[path.stem] = (len(first), float(np.corrcoef(first, second)[0, 1]), float(ratio))
    return claims


def power(seeds: int, effect: float, correlation: float) -> tuple[float, float]:
    """Share of drawn samples in which Welch's test, and the t-test of pairs, find the effect."""
    rng = np.random.default_rng(0)
    first, noise = rng.standard_normal((2, DRAWS, seeds))
    second = effect + correlation * first + math.sqrt(1 - correlation**2) * noise
    welch = stats.ttest_ind(second, first, axis=1, equal_var=False).pvalue
    pairs = stats.ttest_rel(second, first, axis=1).pvalue
    return float((welch < LEVEL).mean()), float((pairs < LEVEL).mean())


def main() -> None:
    claims = shared()
    print("| claim | pairs | correlation | variance of differences |\n| --- | --- | --- | --- |")
    for name, (number, correlation, ratio) in claims.items():
        print(f"| {name} | {number} | {correlation:.2f} | {ratio:.2f} |")
    _, correlation, ratio = np.median([*claims.values()], axis=0)
    print(f"| median | | {correlation:.2f} | {ratio:.2f} |\n")
    print("| seeds | effect | correlation | Welch | pairs |\n| --- | --- | --- | --- | --- |")
    for seeds in (3, 5, 8):
        for effect in (0.0, 1.0, 2.0):
            for correlation in (0.0, 0.5, 0.8):
                shares = " | ".join(f"{share:.3f}" for share in power(seeds, effect, correlation))
                print(f"| {seeds} | {effect:g} | {correlation:g} | {shares} |")


if __name__ == "__main__":
    main()

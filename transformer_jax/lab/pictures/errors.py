# SPDX-License-Identifier: Apache-2.0
"""Pictures of the errors of a classifier or tagger (`scoring.errors`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.lab.pictures import style
from transformer_jax.scoring import errors


@style.styled
def draw_confusion(decided: Sequence[errors.Decision], most: int = 15) -> style.Picture:
    """Confusion matrix: each row is the shares of predicted labels, in percent.

    At most `most` labels are drawn; the rarest ones are together, as "others". Up to six leave room
    for the counts below the shares.
    """
    labels, counts = errors.confusion(decided)
    if len(labels) > most:
        labels = [*labels[: most - 1], "others"]
        for axis in (0, 1):
            frequent, rare = np.split(counts, [most - 1], axis)
            counts = np.concatenate([frequent, rare.sum(axis, keepdims=True)], axis)
    totals = counts.sum(axis=1, keepdims=True)
    percent = 100 * counts / np.maximum(totals, 1)  # a label that is only predicted has no total
    size = min(style.FULL, max(style.COLUMN, 0.9 + 0.3 * len(labels)))
    figure = style.picture(size, 0.82 * size)
    ax = figure.subplots()
    is_roomy = len(labels) <= 6
    font = 8 if is_roomy else 6
    ax.imshow(percent, cmap="Blues", vmin=0, vmax=100)
    for (row, column), share in np.ndenumerate(percent):
        if counts[row, column]:
            shown = "<1" if share < 0.5 else f"{share:.0f}"
            color = "white" if share > 60 else "black"
            shown = f"{shown}%\n{counts[row, column]:,}" if is_roomy else shown
            ax.text(column, row, shown, color=color, ha="center", va="center", fontsize=font)
    names = [style.drawable(label) for label in labels]
    sizes = [f"{name} ({total:,})" for name, total in zip(names, totals.flat, strict=True)]
    are_short = max(map(len, names)) <= 3  # these fit side by side
    ax.set_xticks(range(len(names)), names, rotation=0 if are_short else 90)
    ax.set_yticks(range(len(names)), sizes)
    ax.set(xlabel="predicted (% of the row)", ylabel="expected (number)")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return figure


@style.styled
def draw_calibration(bins: Sequence[errors.Bin]) -> style.Picture:
    """Accuracy by probability; the diagonal is a model that is as often right as it says."""
    figure, (ax,) = style.grid(1, style.COLUMN)
    (ideal,) = ax.plot([0, 1], [0, 1], "--", color="0.5", label="perfectly calibrated")
    probabilities = [bin.probability for bin in bins]
    label = f"model, calibration error {errors.calibration_error(bins):.3f}"
    accuracies = [bin.accuracy for bin in bins]
    (model,) = ax.plot(probabilities, accuracies, "o-", color=style.COLORS[0], label=label)
    for bin in bins:
        point = (bin.probability, bin.accuracy)
        ax.annotate(f"{bin.number:,}", point, (3, -8), textcoords="offset points", fontsize=6)
    ax.set(xlabel="probability of the predicted label", ylabel="accuracy (share)")
    ax.set(xlim=(0, 1.02), ylim=(0, 1.02))
    style.add_legend(figure, [ideal, model])
    return figure


@style.styled
def draw_rates(rates: Sequence[errors.Rate], by: str, most: int = 15) -> style.Picture:
    """Error rate of each of the first `most` groups, with its 95% interval.

    `by` says what the groups are, such as "words of the text".
    """
    rates = rates[:most]
    figure, (ax,) = style.grid(1, 1.0 + 0.2 * len(rates))
    shares = np.array([rate.share for rate in rates])
    around = [shares - [rate.low for rate in rates], [rate.high for rate in rates] - shares]
    bar: dict[str, Any] = {"fmt": "o", "color": style.COLORS[0], "capsize": 2, "elinewidth": 1}
    # An interval that ends at the share itself can be below 0 by rounding, which errorbar refuses.
    ax.errorbar(shares, range(len(rates)), xerr=np.maximum(around, 0), **bar, clip_on=False)
    labels = [f"{style.drawable(rate.group)} ({rate.number:,})" for rate in rates]
    ax.set_yticks(range(len(rates)), labels)
    ax.set_ylim(len(rates) - 0.5, -0.5)
    ax.set(xlabel="error rate (share), 95% interval", ylabel=f"{by} (number)", xlim=(0, None))
    return figure


@style.styled
def draw_worst(decided: Sequence[errors.Decision], most: int = 20) -> style.Picture:
    """Table of the worst errors (`scoring.errors.worst_errors`)."""
    worst = errors.worst_errors(decided)[:most]
    has_probabilities = bool(worst) and worst[0].probability is not None
    is_narrow = max((len(error.text) for error in worst), default=0) < 25  # letters
    width = style.COLUMN if is_narrow else style.FULL
    figure = style.picture(width, 0.35 + 0.19 * max(len(worst), 1))
    columns = (0, 0.45, 0.63, 0.81) if is_narrow else (0, 0.66, 0.78, 0.9)
    ax = figure.subplots()
    ax.set_axis_off()
    table = [["text", "expected", "predicted", "probability" if has_probabilities else "times"]]
    for error in worst:
        texts = map(style.drawable, (error.text, error.expected, error.predicted))
        last = error.number if error.probability is None else f"{error.probability:.3f}"
        table.append([*texts, str(last)])
    for row, cells in enumerate(table):
        for x, cell in zip(columns, cells, strict=True):
            weight = "bold" if row == 0 else "normal"
            ax.text(x, -row, cell, fontsize=6.5, va="center", weight=weight, clip_on=True)
    ax.set(xlim=(0, 1), ylim=(-len(worst) - 0.6, 0.6))
    return figure

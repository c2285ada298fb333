# SPDX-License-Identifier: Apache-2.0
"""Pictures of training: contents of the panels, read back from their axes."""

import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.lab.pictures import draw_curves, draw_recipe


def records(scale):
    train = [
        {"step": s, "split": "train", "loss": scale / s, "learning_rate": s, "tokens_per_s": 9}
        for s in (1, 2, 3)
    ]
    return [*train, {"step": 3, "split": "valid", "loss": scale, "bleu": 30.0, "signature": "x"}]


def panels(figure):
    """Label of an axis -> {label of a line: its values}."""
    return {
        ax.get_ylabel(): {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
        for ax in figure.axes
    }


def test_each_run_has_its_line_in_each_panel():
    found = panels(draw_curves({"one": [records(6)], "two": [records(12)]}))
    bleu = "validation BLEU (0 to 100)"
    assert list(found) == ["loss (nats)", bleu, "learning rate", "tokens per second"]
    loss = found["loss (nats)"]
    assert loss["one train"] == [6, 3, 2] and loss["two train"] == [12, 6, 4]
    assert loss["one valid"] == [6]
    assert found[bleu] == {"one valid": [30.0], "two valid": [30.0]}
    assert found["learning rate"]["two train"] == [1, 2, 3]
    found = panels(draw_curves({"one": [records(6)], "two": [records(12)[:3]]}))
    assert list(found[bleu]) == ["one valid"]  # the other has not been scored yet


def test_the_score_that_selects_has_a_panel():
    both = [*records(6)[:3], {"step": 3, "split": "valid", "loss": 6, "f1": 0.5, "accuracy": 0.9}]
    names = ["validation F1 (share)", "validation accuracy (share)"]
    for selected_by, scores in {
        (): names[:1],
        ("accuracy",): names[1:],
        ("f1", "accuracy"): names,
        ("loss",): [],
    }.items():
        found = list(panels(draw_curves({"one": [both]}, selected_by)))
        assert found == ["loss (nats)", *scores, "learning rate", "tokens per second"]


def test_seeds_are_a_mean_with_a_band_of_one_deviation():
    # The third seed has stopped early.
    loss = draw_curves({"one": [records(6), records(12), records(9)[:2]]}).axes[0]
    train, _ = loss.get_lines()
    np.testing.assert_allclose(train.get_ydata(), [9, 4.5, 3])
    low, high = (edge(loss.collections[0].get_paths()[0].vertices[:, 1]) for edge in (min, max))
    assert (low, high) == pytest.approx((3 - 2**0.5, 9 + 3))
    assert len(draw_curves({"one": [records(6)]}).axes[0].collections) == 0


def test_a_picture_has_one_legend_of_plain_text():
    names = ("$x^$ $y$", "_hidden", "a\nb")
    for runs, labels in (
        ({"one": [records(6)]}, ["training", "validation"]),
        ({"one": [records(6)], "two": [records(6)]}, ["one", "two", "training", "validation"]),
        ({"one": [records(6)[:3]]}, []),
        (dict.fromkeys(names, [records(6)[:3]]), [r"\$x^\$ \$y\$", " _hidden", "a\ufffdb"]),
    ):
        figure = draw_curves(runs)
        assert not any(ax.get_legend() for ax in figure.axes)
        legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert legends == labels


def test_metrics_that_were_not_recorded_have_no_panel():
    one = [{"step": 5, "split": "train", "loss": None}, *records(1)[:1]]
    found = panels(draw_curves({"one": [one]}))
    assert list(found) == ["loss (nats)", "learning rate", "tokens per second"]
    assert found["loss (nats)"]["one train"] == [1]
    with pytest.raises(UserError, match="no curve to draw"):
        draw_curves({"one": [[{"step": 5, "split": "train", "loss": None}]]})


def test_a_recipe_shows_the_schedule_and_the_positions():
    encodings = np.arange(40.0).reshape(10, 4)
    figure = draw_recipe(lambda count: (count + 1) / 10, 100, encodings)
    found = panels(figure)
    assert found["learning rate"]["_child0"][0] == 0.1
    assert found["learning rate"]["_child0"][-1] == 10.0
    assert found["encoding"]["dimension 2"] == list(encodings[:, 2])
    image = figure.axes[1].get_images()[0].get_array()
    np.testing.assert_array_equal(image, encodings.T)
    assert list(panels(draw_recipe(lambda count: 1.0, 5, None))) == ["learning rate"]

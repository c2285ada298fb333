"""What the pictures show, read back from their axes."""

import numpy as np

from transformer_jax.tools.plots import draw_curves, draw_recipe


def records(scale):
    train = [
        {"step": s, "split": "train", "loss": scale / s, "learning_rate": s, "tokens_per_s": 9}
        for s in (1, 2, 3)
    ]
    return [*train, {"step": 3, "split": "valid", "loss": scale, "bleu": 30.0, "signature": "x"}]


def panels(figure):
    """Title -> {label of a line: its values}."""
    return {
        ax.get_title(): {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
        for ax in figure.axes
    }


def test_each_run_has_its_line_in_each_panel():
    found = panels(draw_curves({"one": records(6), "two": records(12)}))
    assert list(found) == [
        "loss (nats a token)",
        "validation bleu",
        "learning rate",
        "tokens a second, without padding",
    ]
    loss = found["loss (nats a token)"]
    assert loss["one train"] == [6, 3, 2] and loss["two train"] == [12, 6, 4]
    assert loss["one valid"] == [6]
    assert found["validation bleu"] == {"one valid": [30.0], "two valid": [30.0]}
    assert found["learning rate"]["two train"] == [1, 2, 3]


def test_a_run_that_has_not_been_scored_yet_has_no_line_there():
    found = panels(draw_curves({"one": records(6), "two": records(12)[:3]}))
    assert list(found["validation bleu"]) == ["one valid"]


def test_what_was_not_recorded_has_no_panel():
    found = panels(
        draw_curves({"one": [{"step": 5, "split": "train", "loss": None}, *records(1)[:1]]})
    )
    assert "validation bleu" not in found and "validation " not in found
    assert found["loss (nats a token)"]["one train"] == [1]


def test_a_recipe_shows_the_schedule_and_the_positions():
    encodings = np.arange(40.0).reshape(10, 4)
    figure = draw_recipe(lambda count: (count + 1) / 10, 100, encodings)
    found = panels(figure)
    assert found["learning rate"]["_child0"][0] == 0.1
    assert found["learning rate"]["_child0"][-1] == 10.0
    lines = found["some of their dimensions"]
    assert lines["dimension 2"] == list(encodings[:, 2])
    image = figure.axes[1].get_images()[0].get_array()
    np.testing.assert_array_equal(image, encodings.T)
    assert list(panels(draw_recipe(lambda count: 1.0, 5, None))) == ["learning rate"]

# SPDX-License-Identifier: Apache-2.0
"""Plots: contents of the panels, read back from their axes, and files."""

import shutil

import numpy as np
import pytest

import transformer_jax as tj
from tests.analysis.drawn_attention import SOURCE, TARGET, drawn_attention
from transformer_jax.errors import UserError
from transformer_jax.nn.positions.absolute import sinusoids
from transformer_jax.runs.config import read_settings
from transformer_jax.tools import plots
from transformer_jax.tools.plots import draw_curves, draw_heads, draw_recipe, plot_attention

PNG = b"\x89PNG\r\n\x1a\n"
ODD = ["$x$", "$\\no_math$", "a\nb", "\x00", "\u2028", "<b>&", "\ud800", "", "</s>"]


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


def test_labels_are_drawn_as_text(tmp_path):
    names = ["$x^$ $y$", "_hidden", "a\nb"]
    figure = draw_curves({name: records(6) for name in names})
    plots.save_figure(figure, tmp_path / "curves.svg")
    (legend, *_) = [ax.get_legend() for ax in figure.axes]
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown[::2] == [r"\$x^\$ \$y\$ train", " _hidden train", "a\ufffdb train"]
    assert [path.name for path in tmp_path.iterdir()] == ["curves.svg"]


def test_a_run_that_has_not_been_scored_yet_has_no_line_there():
    found = panels(draw_curves({"one": records(6), "two": records(12)[:3]}))
    assert list(found["validation bleu"]) == ["one valid"]


def test_metrics_that_were_not_recorded_have_no_panel():
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


def test_the_cells_are_the_weights_beside_their_tokens():
    weights = np.random.default_rng(0).dirichlet(np.ones(5), (6, 4))
    figure = draw_heads(weights, list("abcd"), list("ABCDE"))
    *panels, _ = figure.axes
    assert [ax.get_title() for ax in panels] == [f"head {head}" for head in range(6)]
    for head, ax in enumerate(panels):
        np.testing.assert_array_equal(ax.images[0].get_array(), weights[head])
    below = [label.get_text() for label in panels[4].get_xticklabels()]
    beside = [label.get_text() for label in panels[4].get_yticklabels()]
    assert (below, beside) == (list("ABCDE"), list("abcd"))


def test_the_file_name_selects_svg_or_png(tmp_path):
    attention = drawn_attention({"encoder": SOURCE, "decoder": TARGET}, heads=2)
    plot_attention(attention, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    plot_attention(attention, tmp_path / "a.SVG", kind="decoder", layer=0)
    assert b"<svg" in (tmp_path / "a.SVG").read_bytes()[:1000]


def test_odd_tokens_are_drawn_as_text(tmp_path):
    plot_attention(drawn_attention({"encoder": ODD}, heads=1), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<!-- $x$ -->" in text and "\x00" not in text


def test_an_absent_kind_or_layer_is_an_error(tmp_path):
    attention = drawn_attention({"encoder": SOURCE}, heads=1)
    with pytest.raises(UserError, match="no cross attention; it has encoder"):
        plot_attention(attention, tmp_path / "a.png", kind="cross")
    with pytest.raises(UserError, match="--layer: 2 is none of the layers 0 to 1"):
        plot_attention(attention, tmp_path / "a.png", layer=2)


def test_runs_are_drawn(trained_workdir, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    # A kill has torn the last line.
    torn = (trained_workdir / "metrics.jsonl").read_bytes()[:-20]
    (other / "metrics.jsonl").write_bytes(torn)
    output = tmp_path / "new" / "curves.png"
    plots.plot_runs([trained_workdir, other], output)
    assert output.read_bytes().startswith(PNG)


def test_a_config_is_drawn(tiny_config, tmp_path):
    for positions in ("sinusoidal", "learned", "none"):
        output = tmp_path / f"{positions}.png"
        plots.plot_config(tiny_config({"model.positions": positions}), output)
        assert output.read_bytes().startswith(PNG)


def test_the_positions_drawn_are_those_added_to_embeddings(tiny_config):
    settings = read_settings(tiny_config())
    expected = sinusoids(np.arange(100), settings.model.d_model)
    np.testing.assert_allclose(plots._encodings(settings), expected, rtol=1e-6)


def test_inputs_that_cannot_be_drawn_are_errors(tiny_config, trained_workdir, tmp_path):
    with pytest.raises(tj.UserError, match="absent has no metrics to draw"):
        plots.plot_runs([tmp_path / "absent"], tmp_path / "a.png")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(tj.UserError, match="holds no record yet"):
        plots.plot_runs([empty], tmp_path / "a.png")
    with pytest.raises(tj.UserError, match="config.model: positions is 'lunar'"):
        plots.plot_config(tiny_config({"model.positions": "lunar"}), tmp_path / "a.png")
    shutil.copy(trained_workdir / "metrics.jsonl", tmp_path / "file")
    with pytest.raises(tj.UserError, match="cannot write .*file/a.png"):
        plots.plot_runs([trained_workdir], tmp_path / "file" / "a.png")

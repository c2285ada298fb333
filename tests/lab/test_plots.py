# SPDX-License-Identifier: Apache-2.0
"""Pictures of workdirs, configs and attention, written to files."""

import json
import shutil

import numpy as np
import pytest

import transformer_jax as tj
from tests.lab.analysis.drawn_attention import SOURCE, TARGET, drawn_attention
from transformer_jax.errors import UserError
from transformer_jax.lab import plots
from transformer_jax.lab.plots import plot_attention
from transformer_jax.nn.positions.absolute import sinusoids
from transformer_jax.runs.config import read_settings

PNG = b"\x89PNG\r\n\x1a\n"
ODD = ["$x$", "$\\no_math$", "a\nb", "\x00", "\u2028", "<b>&", "\ud800", "", "</s>"]


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
        plots.plot_config(read_settings(tiny_config({"model.positions": positions})), output)
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
        plots.plot_config(read_settings(tiny_config({"model.positions": "lunar"})), tmp_path)
    shutil.copy(trained_workdir / "metrics.jsonl", tmp_path / "file")
    with pytest.raises(tj.UserError, match="cannot write .*file/a.png"):
        plots.plot_runs([trained_workdir], tmp_path / "file" / "a.png")


def test_seeds_of_a_run_are_one_curve(tmp_path, monkeypatch):
    for seed in (1, 2):
        folder = tmp_path / "run" / f"seed_{seed}"
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(f'{{"step": 1, "split": "train", "loss": {seed}}}\n')
    drawn = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, output: drawn.append(figure))
    plots.plot_runs([tmp_path / "run"], tmp_path / "a.png")
    (line,) = drawn[0].axes[0].get_lines()
    assert list(line.get_ydata()) == [1.5]


@pytest.fixture
def scored(tmp_path):
    """Workdir with predictions of a classifier at two steps."""
    folder = tmp_path / "scored" / "predictions"
    folder.mkdir(parents=True)
    line = {"text": "a dog", "label": "x", "output": "y", "score": 0.75}
    for step, label in ((9, "z"), (10, "x"), (11, "other")):
        split = "test" if step < 11 else "test-b"
        (folder / f"{split}-{step}.jsonl").write_text(json.dumps(line | {"label": label}) + "\n")
    return folder.parent


@pytest.mark.parametrize("kind", ["confusion", "calibration", "worst", "class", "length"])
def test_errors_of_the_last_scored_step_are_drawn(scored, tmp_path, kind):
    plots.plot_errors(scored, kind, "test", tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "<!-- z" not in text
    assert kind in ("calibration", "length") or "<!-- x" in text


def test_errors_that_cannot_be_drawn_are_told(scored, tmp_path):
    with pytest.raises(UserError, match="no predictions of valid; run evaluate with --split=valid"):
        plots.plot_errors(scored, "worst", "valid", tmp_path / "a.png")
    pair = {"source": "a", "target": "b", "output": "c", "score": -1.0}
    (scored / "predictions" / "test-12.jsonl").write_text(json.dumps(pair))
    with pytest.raises(UserError, match="--errors=worst: .* a task without labels or tags"):
        plots.plot_errors(scored, "worst", "test", tmp_path / "a.png")


def test_training_words_are_counted(scored, tmp_path, monkeypatch):
    counted = [{"text": "a a dog"}, {"text": "a"}]
    monkeypatch.setattr(plots, "load_json", lambda path, overrides: "settings")
    monkeypatch.setattr(plots, "open_data", lambda settings, split: counted)
    plots.plot_errors(scored, "frequency", "test", tmp_path / "a.svg")
    assert "<!-- 1 (1) -->" in (tmp_path / "a.svg").read_text()  # "dog" is the rarest word

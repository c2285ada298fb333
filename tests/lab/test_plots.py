# SPDX-License-Identifier: Apache-2.0
"""Pictures of workdirs, configs and attention, written to files."""

import dataclasses
import json
import shutil
from functools import partial

import numpy as np
import pytest

from tests.conftest import write_records
from tests.lab.analysis.drawn_attention import SOURCE, TARGET, drawn_attention
from tests.refusals import assert_refused
from transformer_jax.errors import UserError
from transformer_jax.lab import plots
from transformer_jax.lab.pictures import save_figure
from transformer_jax.nn.positions.absolute import sinusoids
from transformer_jax.runs.config import read_settings

PNG = b"\x89PNG\r\n\x1a\n"
ODD = ["$x$", "$\\no_math$", "a\nb", "\x00", "\u2028", "<b>&", "\ud800", "", "</s>"]


def test_attention_is_drawn_with_odd_tokens_as_text(tmp_path):
    odd = drawn_attention({"encoder": ODD, "decoder": TARGET}, heads=1)
    save_figure(plots.plot_attention(odd), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    save_figure(plots.plot_attention(odd, "encoder", 0), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "<!-- $x$ -->" in text and "\x00" not in text


def test_a_layer_has_its_number_where_others_have_no_weights():
    whole = drawn_attention({"decoder": TARGET}, heads=1)
    path = "decoder.layer_{}.self_attention.weights"
    values = {path.format(i): whole.values[path.format(i // 2)] for i in (1, 3)}
    hybrid = dataclasses.replace(whole, values=values)
    for layer, shown in ((1, 1), (3, 3), (None, 3)):
        figure = plots.plot_attention(hybrid, layer=layer)
        assert figure.get_suptitle() == f"decoder self-attention, layer {shown}"
        (image,) = figure.axes[0].get_images()
        np.testing.assert_array_equal(image.get_array(), values[path.format(shown)][0])
    with pytest.raises(UserError, match="--layer: 2 is none of the layers 1, 3"):
        plots.plot_attention(hybrid, layer=2)


def test_runs_are_drawn(trained_workdir, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    # A kill has torn the last line.
    torn = (trained_workdir / "metrics.jsonl").read_bytes()[:-20]
    (other / "metrics.jsonl").write_bytes(torn)
    output = tmp_path / "new" / "curves.png"
    save_figure(plots.plot_runs([trained_workdir, other]), output)
    assert output.read_bytes().startswith(PNG)


def test_a_config_is_drawn_with_the_positions_added_to_embeddings(tiny_config, tmp_path):
    for positions in ("sinusoidal", "learned", "none"):
        output = tmp_path / f"{positions}.png"
        settings = read_settings(tiny_config({"model.positions": positions}))
        save_figure(plots.plot_config(settings), output)
        assert output.read_bytes().startswith(PNG)
        if positions == "sinusoidal":
            expected = sinusoids(np.arange(100), settings.model.d_model)
            np.testing.assert_allclose(plots._encodings(settings), expected, rtol=1e-6)
    few = read_settings(tiny_config({"model.positions": "learned", "model.max_length": 40}))
    assert plots._encodings(few).shape[0] == 40  # there are no more


def test_seeds_of_a_run_are_one_curve(tmp_path):
    for seed in (1, 2):
        record = {"step": 1, "split": "train", "loss": seed}
        write_records(tmp_path / "run" / f"seed_{seed}", record)
    (line,) = plots.plot_runs([tmp_path / "run"]).axes[0].get_lines()
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
    save_figure(plots.plot_errors(scored, kind, "test"), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "<!-- z" not in text
    assert kind in ("calibration", "length") or "<!-- x" in text


def test_what_cannot_be_drawn_is_refused(scored, trained_workdir, tmp_path):
    attention = drawn_attention({"encoder": SOURCE}, heads=1)
    write_records(tmp_path / "empty", [1])
    shutil.copy(trained_workdir / "metrics.jsonl", tmp_path / "file")
    pair = {"source": "a", "target": "b", "output": "c", "score": -1.0}
    (scored / "predictions" / "train-12.jsonl").write_text(json.dumps(pair))
    across = partial(plots.plot_attention, attention, kind="cross")
    errors = partial(plots.plot_errors, scored, "worst")
    runs = plots.plot_runs([trained_workdir])
    assert_refused(
        {
            "no cross attention; it has encoder": across,
            "--layer: 2 is none of the layers 0 to 1": partial(across, kind="encoder", layer=2),
            "absent has no metrics to draw": lambda: plots.plot_runs([tmp_path / "absent"]),
            "holds no record yet": lambda: plots.plot_runs([tmp_path / "empty"]),
            "file/a.png": lambda: save_figure(runs, tmp_path / "file" / "a.png"),
            "no predictions of valid; run evaluate with --split=valid": partial(errors, "valid"),
            "a task without labels or tags": partial(errors, "train"),
        }
    )

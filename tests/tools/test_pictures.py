"""Pictures as files, of real workdirs and configs."""

import shutil

import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.nn.positions.absolute import sinusoids
from transformer_jax.runs.config import read_settings
from transformer_jax.tools import pictures

PNG = b"\x89PNG\r\n\x1a\n"


def test_runs_are_drawn(trained_workdir, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    # As a kill leaves it: the last line torn.
    torn = (trained_workdir / "metrics.jsonl").read_bytes()[:-20]
    (other / "metrics.jsonl").write_bytes(torn)
    output = tmp_path / "new" / "curves.png"
    pictures.plot_runs([trained_workdir, other], output)
    assert output.read_bytes().startswith(PNG)


def test_a_config_is_drawn(tiny_config, tmp_path):
    for positions in ("sinusoidal", "learned", "none"):
        output = tmp_path / f"{positions}.png"
        pictures.plot_config(tiny_config({"model.positions": positions}), output)
        assert output.read_bytes().startswith(PNG)


def test_the_positions_drawn_are_those_added_to_embeddings(tiny_config):
    settings = read_settings(tiny_config())
    expected = sinusoids(np.arange(100), settings.model.d_model)
    np.testing.assert_allclose(pictures._encodings(settings), expected, rtol=1e-6)


def test_what_cannot_be_drawn_is_told(tiny_config, trained_workdir, tmp_path):
    with pytest.raises(tj.UserError, match="absent has no metrics to draw"):
        pictures.plot_runs([tmp_path / "absent"], tmp_path / "a.png")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "metrics.jsonl").write_text("[1]\n")
    with pytest.raises(tj.UserError, match="holds no record yet"):
        pictures.plot_runs([empty], tmp_path / "a.png")
    with pytest.raises(tj.UserError, match="config.model: positions is 'lunar'"):
        pictures.plot_config(tiny_config({"model.positions": "lunar"}), tmp_path / "a.png")
    shutil.copy(trained_workdir / "metrics.jsonl", tmp_path / "file")
    with pytest.raises(tj.UserError, match="cannot write .*file/a.png"):
        pictures.plot_runs([trained_workdir], tmp_path / "file" / "a.png")

# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of a run, compared with values written out and with its parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, copy_at_step, records_of
from transformer_jax.runs import build
from transformer_jax.runs.config import read_settings
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.training.diagnostics import dead_share, entropies, part_of


def test_entropy_is_the_mean_of_the_queries_that_see_a_key():
    weights = np.zeros((1, 2, 3, 4), np.float32)
    weights[0, 0, 0] = 0.25
    weights[0, 0, 1] = [1, 0, 0, 0]
    weights[0, 1, :2] = [0.5, 0.5, 0, 0]
    np.testing.assert_allclose(entropies(jnp.array(weights)), [np.log(4) / 2, np.log(2)], rtol=1e-6)


def test_a_unit_is_dead_if_no_token_activates_it():
    hidden = np.zeros((2, 3, 4), np.float32)
    hidden[0, 1, 0], hidden[1, 2, 1], hidden[1, 0, 2] = 1.0, -0.5, 1e-4
    assert dead_share(jnp.array(hidden)) == 0.5


def test_a_parameter_belongs_to_its_layer_and_kind():
    paths = {
        "encoder/layer_0/self_attention/query/kernel": "encoder/layer_0/self_attention",
        "decoder/norm/scale": "decoder/norm",
        "embedding/table": "embedding",
        "w": "w",
    }
    assert {path: part_of(path) for path in paths} == paths


def test_rows_of_unequal_sides_stay_pairs(tiny_config):
    """Only some of the 64 rows are looked at: as many of the sources as of the targets."""
    lengths = {"data.max_source_length": 40, "data.max_target_length": 80}
    settings = read_settings(tiny_config(lengths | {"train.tokens_per_batch": 64 * 80}))
    task = build.build_untokenized_task(settings)
    engine = build.build_engine(settings)
    _, _, init_state = build.build_training(settings, task, engine)
    diagnostics = build.build_diagnostics(settings, task, engine)
    shapes = jax.eval_shape(init_state, 0), batch_shapes(task.lengths, 64)
    names = jax.eval_shape(diagnostics._activations, *shapes)
    assert "entropy/decoder/layer_0/cross_attention" in names


@pytest.fixture(scope="module")
def run(language_model_workdir, tiny_language_model, tmp_path_factory):
    """The second half of the finished run, trained again with diagnostics at each step."""
    workdir = copy_at_step(language_model_workdir, 15, tmp_path_factory.mktemp("watched") / "run")
    changes = {"logging.watch_steps": 1, "logging.every_steps": 1, "checkpoint.every_steps": 29}
    return tj.train(tj.config(QUICKSTART, tiny_language_model | changes), workdir)


def test_a_run_is_the_same_with_and_without_diagnostics(run, language_model):
    jax.tree.map(np.testing.assert_array_equal, run.params, language_model.params)
    records = records_of(run.workdir, "watch")
    assert [record["step"] for record in records] == list(range(16, 31))
    last = records[-1]
    layer = "decoder/layer_0"
    least = last[f"least_entropy/{layer}/self_attention"]
    assert 0 < least <= last[f"entropy/{layer}/self_attention"] < np.log(96)
    assert 0 <= last[f"dead/{layer}/feed_forward"] <= 1


def test_norms_are_those_of_the_parameters_and_of_their_change(run):
    previous, last = tj.load(run.workdir, checkpoint=29).params, run.params
    record = records_of(run.workdir, "watch")[-1]
    for kind in ("self_attention", "feed_forward"):
        before, after = (params["decoder"]["layer_0"][kind] for params in (previous, last))
        change = jax.tree.map(np.subtract, after, before)
        part = f"decoder/layer_0/{kind}"
        assert record[f"param/{part}"] == pytest.approx(optax.tree.norm(before), rel=1e-5)
        assert record[f"update/{part}"] == pytest.approx(optax.tree.norm(change), rel=1e-3)
    trained = records_of(run.workdir, "train")[-1]
    of_all = np.sqrt(sum(value**2 for name, value in record.items() if name.startswith("grad/")))
    assert trained["grad_norm"] == pytest.approx(of_all, rel=1e-4)

# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of a run, compared with values written out and with its parameters."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.training.diagnostics import dead_share, entropies, part_of

STEPS = {"train.num_steps": 4, "eval.every_steps": 4, "checkpoint.every_steps": 2}


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


@pytest.mark.parametrize(
    "path, part",
    [
        ("encoder/layer_0/self_attention/query/kernel", "encoder/layer_0/self_attention"),
        ("decoder/layer_1/feed_forward/inner/bias", "decoder/layer_1/feed_forward"),
        ("decoder/norm/scale", "decoder/norm"),
        ("embedding/table", "embedding"),
        ("w", "w"),
    ],
)
def test_a_parameter_belongs_to_its_layer_and_kind(path, part):
    assert part_of(path) == part


def diagnostics(workdir):
    """Records of diagnostics: step -> record."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return {one["step"]: one for one in lines if one["split"] == "watch"}


def test_a_run_is_the_same_with_and_without_diagnostics(tiny_config, tmp_path):
    plain = tj.train(tiny_config(STEPS), tmp_path / "plain")
    seen = tj.train(tiny_config(STEPS | {"logging.watch_steps": 2}), tmp_path / "with")
    jax.tree.map(np.testing.assert_array_equal, plain.params, seen.params)

    records = diagnostics(tmp_path / "with")
    assert sorted(records) == [2, 4]
    last = records[4]
    for kind in ("entropy", "least_entropy"):
        for place in ("encoder", "decoder"):
            assert 0 < last[f"{kind}/{place}/layer_0/self_attention"] < np.log(64)
        assert f"{kind}/decoder/layer_0/cross_attention" in last
    assert (
        last["least_entropy/encoder/layer_0/self_attention"]
        <= (last["entropy/encoder/layer_0/self_attention"])
    )
    assert 0 <= last["dead/encoder/layer_0/feed_forward"] <= 1


def test_norms_are_those_of_the_parameters_and_of_their_change(tiny_config, tmp_path):
    changes = {"logging.watch_steps": 1, "logging.every_steps": 1, "checkpoint.keep_params": 4}
    run = tj.train(tiny_config(STEPS | changes | {"checkpoint.every_steps": 1}), tmp_path / "run")
    third, last = (tj.load(run.workdir, checkpoint=step).params for step in (3, 4))
    record = diagnostics(run.workdir)[4]

    def norm(tree):
        return np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree)))

    for stack in ("encoder", "decoder"):
        for kind in ("self_attention", "feed_forward"):
            before, after = third[stack]["layer_0"][kind], last[stack]["layer_0"][kind]
            change = jax.tree.map(np.subtract, after, before)
            part = f"{stack}/layer_0/{kind}"
            assert record[f"param/{part}"] == pytest.approx(norm(before), rel=1e-5)
            assert record[f"update/{part}"] == pytest.approx(norm(change), rel=1e-3)
    lines = map(json.loads, (run.workdir / "metrics.jsonl").read_text().splitlines())
    (trained,) = [one for one in lines if one["split"] == "train" and one["step"] == 4]
    of_all = np.sqrt(sum(value**2 for name, value in record.items() if name.startswith("grad/")))
    assert trained["grad_norm"] == pytest.approx(of_all, rel=1e-4)

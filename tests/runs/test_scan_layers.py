# SPDX-License-Identifier: Apache-2.0
"""A run with scanned layers is stored, resumed and used like any other."""

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, copy_at_step
from tests.runs.test_seeds import losses
from transformer_jax.runs.seeds import seed_configs, train_replicas

PLACES = {f"layer_{i}" for i in range(2)} | {"final_norm"}


@pytest.fixture(scope="module")
def config_of(tiny_language_model):
    """`config_of(steps, scan, rate)`: steps, whether layers are scanned, and the dropout rate;
    without dropout it keeps a moving average of the parameters."""

    def config(steps, scan, rate=0.0):
        changes = {
            "model.num_layers": 2,
            # Gradients of the keys' biases are 0 except for rounding: relative errors are large.
            "model.attention_bias": "output",
            "model.scan_layers": scan,
            "model.dropout_rate": rate,
            "optimizer.ema_decay": None if rate else 0.5,
            "train.num_steps": steps,
            "checkpoint.every_steps": 2,
            "eval.every_steps": 4,
            "logging.every_steps": 1,
        }
        return tj.config(QUICKSTART, tiny_language_model | changes)

    return config


@pytest.fixture(scope="module")
def unrolled(config_of, tmp_path_factory):
    """A run of four steps without dropout, its layers unrolled."""
    return tj.train(config_of(4, scan=False), tmp_path_factory.mktemp("unrolled") / "run")


@pytest.fixture(scope="module")
def scanned(config_of, tmp_path_factory):
    """The same run, its layers scanned."""
    return tj.train(config_of(4, scan=True), tmp_path_factory.mktemp("scanned") / "run")


def assert_near(found, expected):
    """Tolerance: 1e-5 of an array's largest element. Adam's first steps magnify rounding errors of
    small gradients."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max()),
        found,
        expected,
    )


def test_a_scanned_run_is_the_unrolled_one(unrolled, scanned):
    assert scanned.params["decoder"].keys() == PLACES
    assert_near(scanned.params, unrolled.params)


@pytest.mark.parametrize("first", [True, False])
def test_a_run_resumes_with_layers_scanned_or_not(config_of, unrolled, scanned, tmp_path, first):
    copy_at_step((scanned if first else unrolled).workdir, 2, tmp_path / "run")
    run = tj.train(config_of(4, scan=not first), tmp_path / "run")
    assert run.params["decoder"].keys() == PLACES
    assert_near(run.params, unrolled.params)
    expected = pytest.approx(losses(unrolled.workdir), rel=1e-5)
    assert losses(tmp_path / "run") == expected
    evaluated = losses(tmp_path / "run", "valid")[-1], losses(unrolled.workdir, "valid")[-1]
    assert evaluated[0] == pytest.approx(evaluated[1], rel=1e-5)


def test_a_scanned_run_resumes_bit_for_bit_and_predicts(config_of, tmp_path):
    whole = tj.train(config_of(4, True, rate=0.2), tmp_path / "whole")
    copy_at_step(tmp_path / "whole", 2, tmp_path / "halves")
    halves = tj.train(config_of(4, True, rate=0.2), tmp_path / "halves")
    jax.tree.map(np.testing.assert_array_equal, halves.params, whole.params)
    loaded = tj.load(tmp_path / "halves")
    assert loaded.params["decoder"].keys() == PLACES
    assert loaded.predict(["The dog"]) == whole.predict(["The dog"])


def test_replicas_may_be_scanned(config_of, unrolled, tmp_path):
    runs = train_replicas(seed_configs(config_of(4, scan=True), 2), tmp_path)
    assert_near(runs["seed_0"].params, unrolled.params)
    assert tj.load(tmp_path / "seed_1").params["decoder"].keys() == PLACES

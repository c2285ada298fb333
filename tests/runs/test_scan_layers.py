# SPDX-License-Identifier: Apache-2.0
"""A run with scanned layers is stored and resumed like any other. (Resumed bit for bit:
test_distillation.py.)"""

from functools import partial

import pytest

import transformer_jax as tj
from tests.compiled import assert_near
from tests.conftest import QUICKSTART, copy_at_step
from tests.runs.test_seeds import losses

PLACES = {f"layer_{i}" for i in range(2)} | {"final_norm"}


@pytest.fixture(scope="module")
def config_of(tiny_language_model):
    """`config_of(scan)`: a run of four steps that keeps a moving average of its parameters, its
    layers scanned or not."""

    def config(scan):
        changes = {
            "model.num_layers": 2,
            # Gradients of the keys' biases are 0 except for rounding: relative errors are large.
            "model.attention_bias": "output",
            "model.scan_layers": scan,
            "model.dropout_rate": 0.0,
            "optimizer.ema_decay": 0.5,
            "train.num_steps": 4,
            "checkpoint.every_steps": 2,
            "eval.every_steps": 4,
            "logging.every_steps": 1,
        }
        return tj.config(QUICKSTART, tiny_language_model | changes)

    return config


@pytest.fixture(scope="module")
def unrolled(config_of, tmp_path_factory):
    """A run with unrolled layers."""
    return tj.train(config_of(scan=False), tmp_path_factory.mktemp("unrolled") / "run")


@pytest.fixture(scope="module")
def scanned(config_of, tmp_path_factory):
    """The same run, its layers scanned."""
    return tj.train(config_of(scan=True), tmp_path_factory.mktemp("scanned") / "run")


NEAR = partial(assert_near, tolerance=1e-5)  # Adam's first steps magnify small gradients' rounding


def test_a_scanned_run_is_the_unrolled_one(unrolled, scanned):
    assert scanned.params["decoder"].keys() == PLACES
    NEAR(scanned.params, unrolled.params)


@pytest.mark.parametrize("first", [True, False])
def test_a_run_resumes_with_layers_scanned_or_not(config_of, unrolled, scanned, tmp_path, first):
    copy_at_step((scanned if first else unrolled).workdir, 2, tmp_path / "run")
    run = tj.train(config_of(scan=not first), tmp_path / "run")
    assert run.params["decoder"].keys() == PLACES
    NEAR(run.params, unrolled.params)
    expected = pytest.approx(losses(unrolled.workdir), rel=1e-5)
    assert losses(tmp_path / "run") == expected
    expected = pytest.approx(losses(unrolled.workdir, "valid"), rel=1e-5)
    assert losses(tmp_path / "run", "valid") == expected

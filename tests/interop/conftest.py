# SPDX-License-Identifier: Apache-2.0
"""Fixtures: imported runs of the stored models, one for all tests."""

import functools
from pathlib import Path

import pytest

import transformer_jax as tj
from tests.interop.published import FIXTURES
from transformer_jax.interop.importing import import_model


@pytest.fixture(scope="session")
def workdir_of(shared_dir, made_once):
    """Function from the name of a fixture to the workdir of its run, which must not be changed."""

    def workdir(name):
        def make():
            folder = shared_dir / "imported" / name
            folder.parent.mkdir(exist_ok=True)
            import_model(str(FIXTURES / name), folder)
            return str(folder)

        return Path(made_once(f"imported_{name}", make))

    return workdir


@pytest.fixture(scope="session")
def runs_of_session(workdir_of):
    @functools.cache
    def run(name):
        return tj.load(workdir_of(name)).with_config({"model.dtype": "float32"})

    return run


@pytest.fixture(scope="module")  # so that one worker runs the tests of a module
def run_of(runs_of_session):
    """Function from the name of a fixture to its run, loaded once, in float32."""
    return runs_of_session

# SPDX-License-Identifier: Apache-2.0
"""A process with four devices, and two with two, use runs that one device trained."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import transformer_jax as tj
from tests.parallel import restored
from tests.parallel.jobs import environment, job

LINES = ["The old man sees a dog .", "", "The child sleeps .", "We read the book ."] * 2


@pytest.fixture(scope="module")
def found(trained_once, tiny_language_model, trained_workdir, tmp_path_factory):
    """Output of `restored.py` for a language model, whose vocabulary can be divided, and for a
    translator."""
    config = tj.config("quickstart", tiny_language_model | {"model.vocab_multiple": 4})
    run = trained_once("trained_language_model_of_four_parts", config)
    translator = tmp_path_factory.mktemp("four") / "translator"
    shutil.copytree(trained_workdir, translator)
    command = [sys.executable, restored.__file__, run, translator, *LINES]
    options = {"capture_output": True, "text": True, "timeout": 1200}
    completed = subprocess.run(command, env=environment(devices=4), **options)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def test_a_checkpoint_is_restored_bit_for_bit_on_any_layout(found):
    assert found["digests"].keys() == restored.LAYOUTS.keys()
    assert len(set(found["digests"].values())) == 1


def test_four_devices_translate_and_score_like_one(found, trained):
    def numbers(metrics):
        return {name: value for name, value in metrics.items() if not isinstance(value, str)}

    assert found["scores"] == pytest.approx(trained.score(LINES, LINES), rel=1e-4)
    expected = numbers(trained.evaluate(split="test"))
    assert numbers(found["metrics"]) == pytest.approx(expected, rel=1e-4)


def test_a_patched_run_is_the_same_with_sharded_parameters(found, trained):
    patched = found["patched"]
    alone = trained.patched(restored.PATCHES)
    for outputs, expected in zip(patched["predictions"], alone.n_best(LINES), strict=True):
        assert [text for text, _ in outputs] == [output.text for output in expected]
        assert outputs[0][1] == pytest.approx(expected[0].score, rel=1e-4)
    weights = alone.attention(LINES[0], LINES[0]).weights("cross")
    np.testing.assert_allclose(patched["weights"], weights, atol=1e-5)
    for place, importance in alone.head_importance("test").items():
        np.testing.assert_allclose(patched["importance"][place], importance, atol=1e-5)


def test_two_processes_write_each_prediction_once_in_order(language_model_workdir, language_model):
    """Process 0 reads for all."""
    with job("predict", f"--workdir={language_model_workdir}") as processes:
        processes[1].stdin.close()
        processes[1].stdin = None
        text = "".join(f"{line}\n" for line in LINES)
        written, _ = processes[0].communicate(text, timeout=1200)
        repeated, _ = processes[1].communicate(timeout=1200)
    assert written.splitlines() == language_model.predict(LINES)
    assert repeated == ""
    assert [process.returncode for process in processes] == [0, 0]

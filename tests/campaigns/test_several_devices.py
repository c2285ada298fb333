# SPDX-License-Identifier: Apache-2.0
"""Several devices train, restore and use runs as one device does."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import transformer_jax as tj
from tests.conftest import QUICKSTART, ROOT
from tests.interop import fine_tuning
from tests.interop.published import FIXTURES
from tests.interop.test_fine_tuning import write_data
from tests.parallel import restored
from tests.parallel.jobs import environment, job
from tests.recorded import twenty_steps
from tests.recorded.test_numbers import assert_recorded
from tests.runs.test_seeds import losses
from transformer_jax.interop.importing import import_model
from transformer_jax.runs.seeds import seed_configs, train_replicas

LINES = ["The old man sees a dog .", "", "The child sleeps .", "We read the book ."] * 2
REPLICAS = """
import json, sys, jax
from ml_collections import ConfigDict
from transformer_jax.runs.config import resolve
from transformer_jax.runs.seeds import seed_configs, train_replicas
from transformer_jax.runs.settings import COMMAND
from transformer_jax.training import optimizer
# No learning rate that a config may have is sure to diverge so soon.
optimizer.check_fields = lambda fields: None
config = ConfigDict(json.load(open(sys.argv[1])))
configs = seed_configs(config, 2)
configs["seed_0"] = resolve(configs["seed_0"], {"optimizer.learning_rate": 1e12}, (), COMMAND)
runs = train_replicas(configs, sys.argv[2])
kernel = runs["seed_0"].params["decoder"]["layer_0"]["feed_forward"]["inner"]["kernel"]
print(jax.device_count(), len(kernel.devices()))
"""


def printed_on(devices, *words):
    """What Python prints with these arguments and number of devices."""
    done = subprocess.run(
        [sys.executable, *words],
        env=environment(devices) | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def found(trained_once, tiny_language_model, trained_workdir, tmp_path_factory):
    """Output of `restored.py` for a language model, whose vocabulary can be divided, and for a
    translator."""
    config = tj.config("quickstart", tiny_language_model | {"model.vocab_multiple": 4})
    run = trained_once("trained_language_model_of_four_parts", config)
    translator = tmp_path_factory.mktemp("four") / "translator"
    shutil.copytree(trained_workdir, translator)
    return json.loads(printed_on(4, restored.__file__, run, translator, *LINES))


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


@pytest.mark.parametrize("name", fine_tuning.DIVIDED)
def test_an_imported_model_is_tuned_with_the_same_loss(name, tmp_path):
    import_model(str(FIXTURES / name), tmp_path / name)
    write_data(tmp_path)
    divided = json.loads(printed_on(4, fine_tuning.__file__, tmp_path))
    one_device = fine_tuning.losses(tmp_path, name, "one", {})
    for of_layout in divided[name].values():
        assert of_layout == pytest.approx(one_device, rel=1e-4)


def test_numbers_on_a_mesh_equal_the_recorded_ones(tmp_path):
    words = ["--devices=mesh", f"--folder={tmp_path}"]
    for name, numbers in json.loads(printed_on(4, twenty_steps.__file__, *words)).items():
        assert_recorded(name, numbers)


def test_devices_divide_the_replicas_and_one_that_diverges_leaves_the_other(
    tiny_language_model, tmp_path
):
    changes = {"train.num_steps": 3, "eval.every_steps": 3, "logging.every_steps": 1}
    config = tj.config(QUICKSTART, tiny_language_model | changes | {"model.scan_layers": True})
    train_replicas(seed_configs(config, 2), tmp_path / "alone")
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    printed = printed_on(2, "-c", REPLICAS, tmp_path / "config.json", tmp_path / "group")
    assert printed.split() == ["2", "2"]
    diverged, healthy = (losses(tmp_path / "group" / f"seed_{seed}") for seed in range(2))
    np.testing.assert_allclose(healthy, losses(tmp_path / "alone" / "seed_1"), rtol=1e-5)
    first = losses(tmp_path / "alone" / "seed_0")[0]
    assert diverged[0] == pytest.approx(first, rel=1e-5)
    assert None in diverged  # JSON knows no NaN

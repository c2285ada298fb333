# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of imported models, on one device and sharded over four."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_jax as tj
from tests.interop.fine_tuning import DIVIDED, OF_TASK, losses

WORDS = ["good", "bad", "dog", "cat", "runs"]
CONFIG = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict()\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, workdir_of):
    """Folder with imported runs, data, and an empty config."""
    folder = tmp_path_factory.mktemp("fine_tuning")
    for name in OF_TASK:
        shutil.copytree(workdir_of(name), folder / name)
    (folder / "empty.py").write_text(CONFIG)
    texts = [f"A {a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
    labels = ["yes" if text.count("good") else "no" for text in texts]
    for split, part in {"train": slice(0, 100), "valid": slice(100, 125)}.items():
        rows = zip(texts[part], labels[part], strict=True)
        lines = [f"{text}\t{label}" for text, label in rows]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
        (folder / f"{split}.txt").write_text("\n".join(texts[part]) + "\n")
    return folder


@pytest.fixture(scope="module")
def one_device(folder):
    """Losses on one device."""
    return {name: losses(folder, name, "one", {}) for name in OF_TASK}


@pytest.fixture(scope="module")
def four_devices(folder):
    """Losses on four devices."""
    flags = os.environ["XLA_FLAGS"] + " --xla_force_host_platform_device_count=4"
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("fine_tuning.py"), folder],
        env=os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", OF_TASK)
def test_the_loss_falls(one_device, name):
    assert one_device[name][-1] < one_device[name][0]


def test_options_and_tokenizer_come_from_the_imported_run(one_device, folder):
    before, after = (tj.load(folder / name) for name in ("llama", "llama one"))
    model = after.settings.model
    assert model.d_model == before.settings.model.d_model == 24
    assert model.dropout_rate == model.attention_dropout_rate == 0.0  # Llama never had any
    assert after.tokenizer.sha256 == before.tokenizer.sha256
    assert after.predict(["A good dog"], temperature=1.0, top_k=1, max_extra_length=4)


@pytest.mark.parametrize("name", DIVIDED)
def test_the_loss_is_the_same_on_four_devices(one_device, four_devices, name):
    for of_layout in four_devices[name].values():
        assert of_layout == pytest.approx(one_device[name], rel=1e-4)


def test_adapters_change_nothing_at_first(one_device, folder):
    adapters = losses(folder, "llama", "adapters", {"lora.rank": 2, "train.num_steps": 1})
    assert adapters == pytest.approx(one_device["llama"][:1], rel=1e-6)

# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of imported models. `tests/campaigns/test_several_devices.py` divides one."""

import shutil

import pytest

import transformer_jax as tj
from tests.interop.fine_tuning import OF_TASK, losses

WORDS = ["good", "bad", "dog", "cat", "runs"]
CONFIG = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict()\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, workdir_of):
    """Folder with imported runs, data, and an empty config."""
    folder = tmp_path_factory.mktemp("fine_tuning")
    for name in OF_TASK:
        shutil.copytree(workdir_of(name), folder / name)
    write_data(folder)
    return folder


def write_data(folder):
    """Writes texts with and without labels, and an empty config."""
    (folder / "empty.py").write_text(CONFIG)
    texts = [f"A {a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
    labels = ["yes" if text.count("good") else "no" for text in texts]
    for split, part in {"train": slice(0, 100), "valid": slice(100, 125)}.items():
        rows = zip(texts[part], labels[part], strict=True)
        lines = [f"{text}\t{label}" for text, label in rows]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
        (folder / f"{split}.txt").write_text("\n".join(texts[part]) + "\n")


@pytest.fixture(scope="module")
def one_device(folder):
    """Losses on one device."""
    return {name: losses(folder, name, "one", {}) for name in OF_TASK}


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


def test_adapters_change_nothing_at_first(one_device, folder):
    adapters = losses(folder, "llama", "adapters", {"lora.rank": 2, "train.num_steps": 1})
    assert adapters == pytest.approx(one_device["llama"][:1], rel=1e-6)

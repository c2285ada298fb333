# SPDX-License-Identifier: Apache-2.0
"""Fine-tuning of an imported model. `tests/campaigns/test_several_devices.py` divides it."""

import shutil

import transformer_jax as tj
from tests.interop.fine_tuning import losses

WORDS = ["good", "bad", "dog", "cat", "runs"]
CONFIG = "from ml_collections import ConfigDict\n\n\ndef get_config():\n    return ConfigDict()\n"


def write_data(folder):
    """Writes labeled texts, and an empty config."""
    (folder / "empty.py").write_text(CONFIG)
    texts = [f"A {a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
    labels = ["yes" if text.count("good") else "no" for text in texts]
    for split, part in {"train": slice(0, 100), "valid": slice(100, 125)}.items():
        rows = zip(texts[part], labels[part], strict=True)
        lines = [f"{text}\t{label}" for text, label in rows]
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")


def test_the_loss_falls_with_options_and_tokenizer_of_the_imported_run(tmp_path, workdir_of):
    shutil.copytree(workdir_of("bert"), tmp_path / "bert")
    write_data(tmp_path)
    of_steps = losses(tmp_path, "bert", "one", {})
    assert of_steps[-1] < of_steps[0]
    before, after = (tj.load(tmp_path / name) for name in ("bert", "bert one"))
    model = after.settings.model
    assert model.d_model == before.settings.model.d_model == 16
    assert (model.dropout_rate, model.activation) == (0.0, before.settings.model.activation)
    text = {side: digest for side, digest in after.tokenizer.sha256.items() if side != "label"}
    assert text == before.tokenizer.sha256
    assert set(after.predict(["A good dog"])) <= {"yes", "no"}

# SPDX-License-Identifier: Apache-2.0
"""While the lecture GPT over-fits, its training loss goes on falling.

    transformer_jax claim lecture_overfits_in_training --workdir=runs/claims/lecture_overfits

The runs of `lecture_overfits`. The loss of the training text is measured as that of the validation
text is: after training, without dropout, in windows that tile the text.
"""

import tempfile
from pathlib import Path

from lecture_overfits import CHARACTERS
from lecture_overfits import get_claim as in_validation

import transformer_jax as tj


def training_loss(run):
    """Loss on the characters that the run was trained on."""
    text = tj.read_data(run)[0]["text"][:CHARACTERS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.txt"
        path.write_text(text, encoding="utf-8")
        other = {"data.name": "text", "data.dir": None, "data.valid_text": str(path)}
        return run.with_config(other).evaluate("valid", progress=False)["loss"]


def get_claim():
    claim = in_validation()
    return claim | dict(
        statement="The lecture GPT has a lower training loss after 2,500 than after 1,250.",
        rows=dict(reversed(claim["rows"].items())),
        metric="training loss",
        measure=training_loss,
    )

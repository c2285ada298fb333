# SPDX-License-Identifier: Apache-2.0
"""Dropout of 0.2 narrows the gap between validation and training loss of the lecture GPT.

    transformer_jax claim lecture_dropout --workdir=runs/claims/lecture_overfits

Karpathy's lecture "Let's build GPT" adds dropout because it expects a larger model to over-fit. The
runs of `lecture_overfits`, and dropout on embeddings, attention weights and sublayers. Both losses
are measured without dropout.
"""

from lecture_overfits import get_claim as without_dropout
from lecture_overfits_in_training import training_loss


def get_claim():
    claim = without_dropout()
    rate = {"model.dropout_rate": 0.2, "model.attention_dropout_rate": 0.2}
    return claim | dict(
        statement="Dropout of 0.2 narrows the gap between validation and training loss.",
        rows={"dropout": rate, "2,500 steps": claim["rows"]["2,500 steps"]},
        metric="validation minus training loss",
        measure=lambda run: run.evaluate("valid", progress=False)["loss"] - training_loss(run),
    )

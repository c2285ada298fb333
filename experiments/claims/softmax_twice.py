# SPDX-License-Identifier: Apache-2.0
"""A model that ends with a softmax learns worse if its loss applies the softmax again.

    transformer_jax claim softmax_twice --workdir=runs/claims \\
        --modules=experiments/claims/modules/double_softmax.py

A common mistake, against which PyTorch's documentation of CrossEntropyLoss warns. Accuracy is
compared, because the logits of the second row are not meant as log-probabilities.
"""


def get_claim():
    return dict(
        statement="With one softmax a Transformer predicts more tokens correctly than with two.",
        config="tiny_shakespeare_claims",
        rows={
            "base": {},
            "two softmaxes": {"train.loss": "double_softmax"},
        },
        metric="accuracy",
        better="higher",
        smallest=0.02,
        looks=(4, 8),
        source="PyTorch, documentation of CrossEntropyLoss",
    )

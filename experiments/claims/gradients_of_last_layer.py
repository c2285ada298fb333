# SPDX-License-Identifier: Apache-2.0
"""At initialization, the last layer's gradients are smaller in pre-norm than in post-norm.

    transformer_jax claim gradients_of_last_layer --workdir=runs/claims/gradients_of_last_layer

Theorem 1 of Xiong et al. 2020: in post-norm they do not depend on the number of layers L, in
pre-norm they shrink as 1 / sqrt(L). The model is that of `gradients_by_depth`, with 6 layers.
"""

from gradients_by_depth import gradient_norms


def get_claim():
    return dict(
        statement="Initial gradients of the last layer are smaller in pre-norm than in post-norm.",
        rows={"pre-norm": {}, "post-norm": {}},
        experiment=lambda seed: tuple(gradient_norms(each, seed)[-1] for each in ("pre", "post")),
        metric="gradient norm",
        source="Xiong et al. 2020, On Layer Normalization in the Transformer Architecture",
    )

# SPDX-License-Identifier: Apache-2.0
"""Without 1 / sqrt(d_k), the softmax has extremely small gradients at large d_k (section 3.2.1).

    transformer_jax claim softmax_saturates --workdir=runs/claims/softmax_saturates

Queries and keys of 512 independent standard normal numbers, 64 keys. The gradient of a query is the
Frobenius norm of the softmax's Jacobian, diag(p) - p p^T; "extremely small" is read as less than a
tenth of that with the scale, in the mean over 512 queries.

Tutorials: unscaled products push the softmax to where it has extremely small gradients
([one](https://physea-wiki.pages.dev/language-model-architecture/attention-explained/scaling-and-softmax)).
Here: In the mean over random queries half of the gradient is left at d_k = 512.
"""

import jax
import numpy as np

from transformer_jax.nn.attention import attention_logits
from transformer_jax.nn.ops import softmax

QUERIES, KEYS, D_K = 512, 64, 512


@jax.jit
@jax.vmap
def by_module(logits):
    """Norm of the Jacobian of the softmax of one query, differentiated."""
    return jax.numpy.linalg.norm(jax.jacobian(softmax)(logits))


def by_formula(logits):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return np.linalg.norm(np.eye(KEYS) * p[:, None] - p[:, :, None] * p[:, None], axis=(1, 2))


def experiment(seed):
    """Mean norm without the scale, and a tenth of that with it."""
    rng = np.random.default_rng(seed)
    query, key = (rng.normal(size=(1, n, 1, D_K)).astype(np.float32) for n in (QUERIES, KEYS))
    scaled = np.asarray(attention_logits(query, key))[0, 0]
    norms = [[f(x).mean() for f in (by_module, by_formula)] for x in (scaled * D_K**0.5, scaled)]
    return max(norms[0]), min(norms[1]) / 10


def get_claim():
    return dict(
        statement="Without 1 / sqrt(512), the softmax has less than a tenth of the gradient.",
        rows={"unscaled": {}, "a tenth of scaled": {}},
        experiment=experiment,
        metric="mean norm of the softmax's Jacobian",
        source="Vaswani et al. 2017, section 3.2.1",
    )

# SPDX-License-Identifier: Apache-2.0
"""Position-wise feed-forward network (section 3.3)."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.sublayers import Features, FeedForwardLayer
from transformer_jax.registry import Registry, require_shape

ACTIVATIONS: Registry[Callable[[Array], Array]] = Registry(
    "model.activation",
    {
        "relu": nn.relu,
        "gelu": nn.gelu,
        "silu": nn.silu,
        "gelu_exact": functools.partial(nn.gelu, approximate=False),
        "squared_relu": lambda x: jnp.square(nn.relu(x)),
        "swish": nn.silu,
    },
)


class FeedForward(FeedForwardLayer):
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (equation 2), or another activation than max(0, x).

    Gated (Shazeer 2020): FFN(x) = (activation(x Wg + bg) * (x W1 + b1)) W2 + b2. The third matrix
    adds half of the parameters; with 2/3 of d_ff their number is the same as without.
    """

    reads = (
        *("model.d_ff", "model.gated_feed_forward", "model.feed_forward_bias"),
        "model.feed_forward_dropout_rate",
    )

    def setup(self) -> None:
        c = self.config
        self.inner = Linear((c.d_model,), (c.d_ff,), c.feed_forward_bias, c, c.kernel_std)
        if c.gated_feed_forward:
            self.gate = Linear((c.d_model,), (c.d_ff,), c.feed_forward_bias, c, c.kernel_std)
        std = c.residual_std(self.num_sublayers)
        self.outer = Linear((c.d_ff,), (c.d_model,), c.feed_forward_bias, c, std)
        self.activation = ACTIVATIONS.configured(c.activation, c)
        self.dropout = Dropout.of(c, "feed_forward_dropout_rate")

    def __call__(
        self, x: Features, deterministic: bool, real: Bool[Array, "N T"] | None = None
    ) -> Features:
        if self.config.gated_feed_forward:
            hidden = self._activated(self.gate(x)) * self.inner(x)
        else:
            hidden = self._activated(self.inner(x))
        hidden = self.dropout(hidden, deterministic)
        return self.outer(self.expose("hidden", hidden, ("position", "neuron")))

    def _activated(self, x: Float[Array, "N T H"]) -> Float[Array, "N T H"]:
        name = f"activation {self.config.activation!r}"
        return require_shape(self.activation, name, self.activation(x), x.shape)

# SPDX-License-Identifier: Apache-2.0
"""A feed-forward layer that routes: each token passes through one of several networks (Switch
Transformer, Fedus et al. 2022), with a loss that keeps their load even.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/switch \\
        --modules=docs/recipes/routed_layer.py --config.model.feed_forward=switch \\
        --config.model.switch.num_experts=4
"""

import dataclasses
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.nn.auxiliary import add_loss, add_metric
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.layers import FEED_FORWARDS
from transformer_jax.nn.parameters import Parameter
from transformer_jax.nn.sublayers import FeedForwardLayer
from transformer_jax.ranges import Range


@dataclasses.dataclass(frozen=True)
class SwitchOptions:
    """Options of the layer.

    Attributes:
      num_experts: networks of a layer.
      balance_weight: weight of the balance loss.
    """

    num_experts: Annotated[int, Range(2, 64)] = 4
    balance_weight: Annotated[float, Range(0, 10)] = 0.01


@FEED_FORWARDS.register("switch")
class Switch(FeedForwardLayer):
    """Computes every network for every token, and keeps one; `nn/experts.py` computes only that."""

    options = SwitchOptions
    reads = ("model.d_ff",)
    parameters = (
        Parameter(r"switch_router", "head", ("model", "choices")),
        Parameter(r"switch_inner", "matrices", ("experts", "model", "hidden")),
        Parameter(r"switch_outer", "matrices", ("experts", "hidden", "model")),
    )

    @nn.compact
    def __call__(self, x, deterministic, real=None):  # [N, T, D]
        c, o = self.config, self.config.options_of(SwitchOptions)
        normal, experts = nn.initializers.normal(0.02), o.num_experts
        router = self.param("switch_router", normal, (c.d_model, experts))
        inner = self.param("switch_inner", normal, (experts, c.d_model, c.d_ff))
        outer = self.param("switch_outer", normal, (experts, c.d_ff, c.d_model))
        probabilities = jax.nn.softmax(x @ router)
        chosen = jax.nn.one_hot(probabilities.argmax(-1), experts)
        if real is not None:  # padding is routed nowhere, and counts nowhere
            chosen, probabilities = (each * real[..., None] for each in (chosen, probabilities))
        loads, tokens = chosen.sum(1), jnp.maximum(chosen.sum((1, 2)), 1)  # [N, E], [N]
        balance = experts * (loads * probabilities.sum(1)).sum(-1) / tokens  # of a row x its tokens
        add_loss(self, "balance", balance.sum(), o.balance_weight, loads.sum())
        add_metric(self, "largest_load", loads.max(1).sum(), loads.sum())
        hidden = ACTIVATIONS.find(c.activation)(jnp.einsum("ntd,edf->ntef", x, inner))
        weights = chosen * probabilities
        return jnp.einsum("ntef,efd,nte->ntd", hidden, outer, weights).astype(x.dtype)

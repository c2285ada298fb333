# SPDX-License-Identifier: Apache-2.0
"""Mixture of experts (Shazeer et al. 2017): each token passes through k of E feed-forward networks.

    y_t = sum over the chosen e of g_te FFN_e(x_t) + FFN_shared(x_t)

N rows, T tokens, D model, F hidden, E experts, k chosen experts; R = N T k choices.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn import per_device
from transformer_jax.nn.auxiliary import LIMITS, add_loss, add_metric, is_collected
from transformer_jax.nn.config import TransformerConfig, activation_dtype
from transformer_jax.nn.feed_forward import ACTIVATIONS, FeedForward
from transformer_jax.nn.grouped_product import (
    collect_rows,
    group_rows,
    grouped_product,
    spread_rows,
)
from transformer_jax.nn.linear import Linear, kernel_initializer
from transformer_jax.nn.ops import product_dtype, with_gradient
from transformer_jax.nn.parameters import SIDE_GRADIENT, Parameter
from transformer_jax.nn.sublayers import Features, FeedForwardLayer
from transformer_jax.ranges import OneOf, Range, check_fields

ROUTERS = ("softmax", "sigmoid")

LIMITS["dropped"] = (
    0.5,
    "experts have no place for more than half of the choices; raise capacity_factor of "
    "model.experts, or balance_weight if few experts get most tokens (aux/load)",
)


@dataclasses.dataclass(frozen=True)
class ExpertsOptions:
    """Options of the feed-forward layer "experts", whose experts have the width model.d_ff.

    Attributes:
      num_experts: experts E of a layer.
      num_chosen: experts k that each token passes through.
      num_shared: experts that every token passes through, beside the k (DeepSeekMoE, 2024).
      router: affinities of a token to the experts: "softmax" of the router's logits (Mixtral,
        Qwen3-MoE) or "sigmoid" of each (DeepSeek-V3).
      renormalize: divide the k affinities by their sum (`norm_topk_prob` in transformers).
      routed_scale: factor of the routed experts' output (DeepSeek-V3: 2.5).
      capacity_factor: in training, an expert takes at most this multiple of its even share of a
        row's choices, the first ones; the others are dropped: the token passes only through its
        other experts and the residual connection. None: no choice is dropped.
      balance_weight: weight of the balance loss; it is 1 if the load is even (Fedus et al. 2022,
        equation 4; for k experts, divided by k).
      z_weight: weight of the router's z-loss (Zoph et al. 2022, equation 5).
      bias_rate: step by which an expert's bias in the choice rises or falls after each update, as
        it had fewer or more tokens than others (Wang et al. 2024; 0.001 in DeepSeek-V3); 0: no
        biases.

    Raises:
      ValueError: a value out of range, more experts chosen than there are, or a capacity with room
        for at most half of the choices.
    """

    num_experts: Annotated[int, Range(2, 4096)] = 8
    num_chosen: Annotated[int, Range(1, 256)] = 2
    num_shared: Annotated[int, Range(0, 64)] = 0
    router: Annotated[str, OneOf(*ROUTERS)] = "softmax"
    renormalize: bool = True
    routed_scale: Annotated[float, Range(0, 1000, "(]")] = 1.0
    capacity_factor: Annotated[float, Range(0, 1000, "(]")] | None = None
    balance_weight: Annotated[float, Range(0, 1000)] = 0.01
    z_weight: Annotated[float, Range(0, 1000)] = 0.001
    bias_rate: Annotated[float, Range(0, 1, "[)")] = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.num_chosen > self.num_experts:
            raise ValueError(
                f"num_chosen is {self.num_chosen}, but num_experts is {self.num_experts}"
            )
        if self.capacity_factor is not None and self.capacity_factor <= 0.5:
            raise ValueError(
                f"capacity_factor is {self.capacity_factor:g}, so that at least "
                f"{1 - self.capacity_factor:.0%} of the choices would be dropped; it is usually "
                "1 to 2, or none"
            )

    def capacities(self, length: int) -> list[int]:
        """Largest number of choices that an expert takes of a row, for rows of 0 to `length`
        tokens; exact for the decimal number in the config, which a float32 product is not."""
        even_share = Fraction(self.num_chosen, self.num_experts)
        factor = Fraction(str(self.capacity_factor)) * even_share
        return [math.ceil(factor * tokens) for tokens in range(length + 1)]


class Routing(NamedTuple):
    """Chosen experts (E for choices of padding, and for dropped ones), g of each, and affinities of
    all experts, whose sum is 1."""

    experts: Int[Array, "N T k"]
    weights: Float[Array, "N T k"]
    affinities: Float[Array, "N T E"]


def route(
    logits: Float[Array, "N T E"], bias: Float[Array, " E"] | None, options: ExpertsOptions
) -> Routing:
    """Chooses the k experts of the highest affinity plus bias; the bias has no gradient, and no
    part in the weights."""
    softmax = options.router == "softmax"
    affinities = jax.nn.softmax(logits) if softmax else jax.nn.sigmoid(logits)
    scores = affinities if bias is None else affinities + jax.lax.stop_gradient(bias)
    _, experts = jax.lax.top_k(scores, options.num_chosen)
    weights = jnp.take_along_axis(affinities, experts, axis=-1)
    if options.renormalize:
        weights /= weights.sum(-1, keepdims=True) + 1e-20  # as in DeepSeek-V3
    if not softmax:
        affinities /= affinities.sum(-1, keepdims=True) + 1e-20
    return Routing(experts, options.routed_scale * weights, affinities)


def drop_overflow(
    experts: Int[Array, "N T k"], capacity: Int[Array, " N"], num_experts: int
) -> Int[Array, "N T k"]:
    """Replaces by E the choices that find their expert full. In each row, earlier tokens come
    first, so that no token takes the place of an earlier one."""
    flat = experts.reshape(experts.shape[0], -1)
    chosen = jax.nn.one_hot(flat, num_experts, dtype=jnp.int32)  # all 0 for E, which is no expert
    counts = jnp.cumsum(chosen, axis=1)  # choices of each expert so far
    places = jnp.take_along_axis(counts, flat[..., None], axis=-1, mode="clip")[..., 0]
    return jnp.where(places <= capacity[:, None], flat, num_experts).reshape(experts.shape)


def balance_loss(
    loads: Float[Array, "N E"], affinities: Float[Array, "N E"], tokens: Float[Array, " N"]
) -> Float[Array, " N"]:
    """E sum_e f_e P_e of each row (Fedus et al. 2022, equation 4): the share f_e of the choices,
    times the mean affinity P_e (`affinities` are sums over the row). It is 1 if either is even."""
    shares = loads / jnp.maximum(loads.sum(-1, keepdims=True), 1)
    means = affinities / jnp.maximum(tokens, 1)[:, None]
    return loads.shape[-1] * (shares * means).sum(-1)


class Experts(FeedForwardLayer):
    """Routed experts, each a `FeedForward` without biases and dropout, and shared ones."""

    options = ExpertsOptions
    reads = ("model.d_ff", "model.gated_feed_forward")
    parameters = (
        Parameter(r"router/kernel", "head", ("model", "choices")),
        Parameter(r"router_bias_steps", "counter", ("choices",)),
        Parameter(r"expert_(inner|gate)", "matrices", ("experts", "model", "hidden")),
        Parameter(r"expert_outer", "matrices", ("experts", "hidden", "model")),
        Parameter(r"expert_(inner|gate)/\d+", "matrix", ("model", "hidden")),  # of one expert
        Parameter(r"expert_outer/\d+", "matrix", ("hidden", "model")),
    )

    @classmethod
    def active_share(cls, config: TransformerConfig, path: str) -> float:
        o = config.options_of(ExpertsOptions)
        return o.num_chosen / o.num_experts if path.startswith("expert_") else 1.0

    @classmethod
    def undivided_reason(cls, config: TransformerConfig) -> str | None:
        if config.options_of(ExpertsOptions).capacity_factor is None:
            return None
        return "with experts.capacity_factor earlier tokens come first; set it to none"

    def setup(self) -> None:
        c = self.config
        o = c.options_of(ExpertsOptions)
        exact = dataclasses.replace(c, dtype="float32")
        self.router = Linear((c.d_model,), (o.num_experts,), False, exact, c.kernel_std, exact=True)
        if o.bias_rate:
            zeros = nn.initializers.zeros
            self.router_bias_steps = self.param("router_bias_steps", zeros, (o.num_experts,))
        init = kernel_initializer(c.kernel_std, 1, 2, batch_axis=0)
        inner_shape = (o.num_experts, c.d_model, c.d_ff)
        self.inner = self.param("expert_inner", init, inner_shape)
        if c.gated_feed_forward:
            self.gate = self.param("expert_gate", init, inner_shape)
        init = kernel_initializer(c.residual_std(self.num_sublayers), 1, 2, batch_axis=0)
        self.outer = self.param("expert_outer", init, (o.num_experts, c.d_ff, c.d_model))
        if o.num_shared:
            wide = dataclasses.replace(c, d_ff=o.num_shared * c.d_ff, feed_forward_bias=False)
            self.shared = FeedForward(wide, self.num_sublayers)

    def __call__(
        self, x: Features, deterministic: bool, real: Bool[Array, "N T"] | None = None
    ) -> Features:
        o = self.config.options_of(ExpertsOptions)
        real = jnp.ones(x.shape[:2], bool) if real is None else real
        logits = self.router(x)
        bias = o.bias_rate * self.router_bias_steps if o.bias_rate else None
        routing = route(logits, bias, o)
        experts = jnp.where(real[..., None], routing.experts, o.num_experts)
        # Choices of each expert in each row. E, which is no expert, counts nowhere.
        loads = jax.nn.one_hot(experts, o.num_experts).sum((1, 2))
        weights = routing.weights
        if o.bias_rate:
            # Only the sign of the load minus the mean load counts (`nn.parameters`, "counter");
            # whole numbers, so that the order of sums is free.
            load = loads.sum(0)
            gradient = SIDE_GRADIENT * (load.size * load - load.sum())
            weights = with_gradient(weights, self.router_bias_steps, gradient)
        max_choices = x.shape[1] * o.num_chosen
        if o.capacity_factor is not None and not deterministic:
            capacities = o.capacities(x.shape[1])
            experts = drop_overflow(experts, jnp.array(capacities)[real.sum(1)], o.num_experts)
            max_choices = capacities[-1]
        if is_collected(self):
            tokens = real.sum(1).astype(jnp.float32)
            affinities = (routing.affinities * real[..., None]).sum(1)
            balance = balance_loss(loads, affinities, tokens)
            add_loss(self, "balance", (tokens * balance).sum(), o.balance_weight, tokens.sum())
            z = jnp.square(jax.nn.logsumexp(logits, axis=-1))
            add_loss(self, "router_z", (z * real).sum(), o.z_weight, tokens.sum())
            routed = loads.sum()
            add_metric(self, "dropped", routed - (experts < o.num_experts).sum(), routed)
            # The largest load of each row, relative to an even load.
            largest = loads.max(1) * o.num_experts / jnp.maximum(loads.sum(1), 1)
            add_metric(self, "load", (tokens * largest).sum(), tokens.sum())
        y = self._apply_experts(x, experts, weights, max_choices)
        return y + self.shared(x, deterministic) if o.num_shared else y

    def _apply_experts(
        self,
        x: Features,
        experts: Int[Array, "N T k"],
        weights: Float[Array, "N T k"],
        max_choices: int,
    ) -> Features:
        """Weighted sum of the chosen experts' outputs of each token, on each device's shards;
        `max_choices` bounds those of an expert in a row."""
        c = self.config
        activation = ACTIVATIONS.configured(c.activation, c)
        dtype = product_dtype(c.dtype)

        def apply(x: Array, experts: Array, weights: Array, kernels: tuple[Array, ...]) -> Array:
            inner, *gate, outer = kernels
            num_experts = inner.shape[0]
            max_rows = max_choices * x.shape[0] * num_experts
            groups = group_rows(experts.reshape(-1), num_experts, max_rows)
            slots = spread_rows(x.reshape(-1, x.shape[-1]), groups)
            hidden = grouped_product(slots, inner, groups, dtype)
            if gate:
                hidden *= activation(grouped_product(slots, gate[0], groups, dtype))
            else:
                hidden = activation(hidden)
            outputs = grouped_product(hidden, outer, groups, dtype)
            chosen = collect_rows(outputs, groups).reshape(*experts.shape, -1)
            return (chosen * weights[..., None]).sum(2).astype(activation_dtype(c))

        gate = (self.gate,) if c.gated_feed_forward else ()
        kernels = (self.inner, *gate, self.outer)
        tokens = "rows sequence features"
        kernel_axes = ("experts features hidden",) * (1 + len(gate)) + ("experts hidden features",)
        # Each axis has the `shard_map` of the whole mesh.
        for axis in map(per_device.axis, ("experts", "rows", "sequence", "hidden")):
            if axis is not None:
                in_axes = (tokens, tokens, tokens, kernel_axes)
                run = axis.shard_map(_exchanged(apply), in_axes, tokens)
                return run(x, experts, weights, kernels)
        return apply(x, experts, weights, kernels)


def _exchanged(apply: Callable[..., Array]) -> Callable[..., Array]:
    """Function of a device's shards: it applies its experts, or its part of each, to the tokens of
    all devices that share them, and adds up the parts of its own tokens."""
    axis = per_device.axis("experts")
    hidden = per_device.axis("hidden")

    def exchanged(x: Array, experts: Array, weights: Array, kernels: tuple[Array, ...]) -> Array:
        if axis is not None:
            gather = functools.partial(jax.lax.all_gather, axis_name=axis.name, tiled=True)
            x, experts, weights = map(gather, (x, experts, weights))
            count = kernels[0].shape[0]
            experts = experts - count * jax.lax.axis_index(axis.name)  # numbered from its first
            experts = jnp.where((experts >= 0) & (experts < count), experts, count)
        y = apply(x, experts, weights, kernels)
        if axis is not None:
            y = jax.lax.psum_scatter(y, axis.name, tiled=True)
        return y if hidden is None else jax.lax.psum(y, hidden.name)

    return exchanged

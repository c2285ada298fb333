"""What a fused kernel is told and promises.

B batch, T queries, S keys, H heads, G heads of keys and values, K key size of a head, V value size
of a head.
"""

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from transformer_jax.nn.attention_inputs import AttentionInputs, Segments
from transformer_jax.nn.masks import window_mask
from transformer_jax.nn.per_device import is_divided, sharded_call
from transformer_jax.registry import Registry
from transformer_jax.runtime.platform import is_cpu, target

Heads = Float[Array, "B T H V"]


@dataclasses.dataclass(frozen=True)
class AttentionRequirements:
    """What one attention asks for besides equation 1.

    Attributes:
      weights: someone looks at the weights.
      dropout: some weights are dropped.
      logit_bias: something is added to the logits.
      extra_values: the weights have a second use (`PositionEncoding.extra_values`).
      logit_cap: as `TransformerConfig` has it.
      window: likewise, of self-attention.
      dtype: of the products.
    """

    weights: bool = False
    dropout: bool = False
    logit_bias: bool = False
    extra_values: bool = False
    logit_cap: float | None = None
    window: int | None = None
    dtype: DTypeLike = jnp.float32

    def unsupported_reason(self) -> str | None:
        """What no fused kernel does; None: nothing of that is asked."""
        reasons = {
            "someone looks at the weights": self.weights,
            "it drops weights (model.attention_dropout_rate)": self.dropout,
            "its positions add to the logits": self.logit_bias,
            "its positions use the weights once more": self.extra_values,
            "its products are no bfloat16": jnp.dtype(self.dtype) != jnp.bfloat16,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)


@runtime_checkable
class FusedKernel(Protocol):
    """An implementation that may stand for `attention.scaled_dot_product_attention`.

    Attributes:
      platform: that it runs on, as JAX names it.
    """

    platform: ClassVar[str]

    def refusal(self, inputs: AttentionInputs, asked: AttentionRequirements) -> str | None:
        """Why it cannot compute this attention exactly and fast; None: it can."""

    def __call__(self, inputs: AttentionInputs, asked: AttentionRequirements) -> Heads:
        """The heads' outputs, in `asked.dtype`; a query without any key gets zeros."""


def segments_of(inputs: AttentionInputs) -> Segments:
    """The segments that a kernel is given; `choose` takes none without them."""
    assert inputs.segments is not None
    return inputs.segments


def without_padding(heads: Heads, segments: Segments) -> Heads:
    """Zeros for queries that are padding, which a kernel lets see something."""
    real: Bool[Array, "B T"] = segments.query > 0
    return jnp.where(real[:, :, None, None], heads, 0)


# FOLDED nn.kernels.cudnn: NVIDIA's fused attention.


@dataclasses.dataclass(frozen=True)
class CuDNN:
    """NVIDIA's kernel, through `jax.nn.dot_product_attention`. Masks, and so packing and windows,
    reach it as a bias of the logits.

    Attributes:
      implementation: by the name that JAX has for it.
    """

    implementation: str = "cudnn"
    platform: ClassVar[str] = "gpu"

    def refusal(self, inputs: AttentionInputs, asked: AttentionRequirements) -> str | None:
        capability, size = float(target().capability or 0), inputs.query.shape[3]
        if capability < 8:
            return "it runs on NVIDIA's GPUs from Ampere on"
        if asked.logit_cap is not None:
            return "it has no cap for the logits"
        largest = 256 if capability >= 9 else 128
        if size % 8 or size > largest or size != inputs.value.shape[3]:
            return f"it takes heads of one size for keys and values, a multiple of 8 to {largest}"
        if inputs.query.shape[1] % 2 or inputs.key.shape[1] % 2:
            return "it takes rows of even length"
        return None

    def __call__(self, inputs: AttentionInputs, asked: AttentionRequirements) -> Heads:
        segments = segments_of(inputs)
        attend = functools.partial(
            jax.nn.dot_product_attention,
            is_causal=segments.causal,
            implementation=self.implementation,
        )

        def of_device(heads: tuple[Array, ...], rows: tuple[Array, ...]) -> Heads:
            return attend(*heads, mask=rows[0])

        mask = inputs.mask
        if asked.window is not None:
            mask &= window_mask(inputs.distance, asked.window)
        heads = tuple(x.astype(asked.dtype) for x in (inputs.query, inputs.key, inputs.value))
        return without_padding(sharded_call(of_device, heads, (mask,)), segments)


# FOLDED nn.kernels.splash: Splash attention, JAX's fused attention for TPUs.


_LANES = 128
_BLOCKS = (1024, 512, 256, _LANES)


class Splash:
    """The TPU kernel of JAX's Pallas library: blocks that nobody sees cost nothing."""

    platform: ClassVar[str] = "tpu"

    def refusal(self, inputs: AttentionInputs, asked: AttentionRequirements) -> str | None:
        if inputs.query.shape[1] % _LANES or inputs.key.shape[1] % _LANES:
            return f"it takes rows whose length is a multiple of {_LANES}"
        return None

    def __call__(self, inputs: AttentionInputs, asked: AttentionRequirements) -> Heads:
        segments = segments_of(inputs)
        attend = functools.partial(_splash, causal=segments.causal, asked=asked)
        query = inputs.query / math.sqrt(inputs.query.shape[-1])
        heads = tuple(x.astype(asked.dtype) for x in (query, inputs.key, inputs.value))
        return without_padding(
            sharded_call(attend, heads, (segments.query, segments.key)), segments
        )


def _splash(
    heads: tuple[Array, ...], rows: tuple[Array, ...], causal: bool, asked: AttentionRequirements
) -> Float[Array, "B T H V"]:
    """Attention of [B, T, H, K], [B, S, G, K], [B, S, G, V] within segments [B, T] and [B, S]; in
    Python where there is no TPU, for tests."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # takes half a second

    query, key, value = (jnp.moveaxis(x, 1, 2) for x in heads)
    shape = query.shape[2], key.shape[2]
    mask: Any = splash.CausalMask(shape) if causal else splash.FullMask(shape)
    if asked.window is not None:
        behind, ahead = asked.window - 1, 0 if causal else asked.window - 1
        mask = splash.LocalMask(shape, (behind, ahead), offset=0)
    of_queries, of_keys = (next(n for n in _BLOCKS if length % n == 0) for length in shape)
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * query.shape[1]),
        block_sizes=splash.BlockSizes(
            block_q=of_queries,
            block_kv=of_keys,
            block_q_dkv=of_queries,
            block_kv_dkv=of_keys,
            use_fused_bwd_kernel=True,
        ),
        attn_logits_soft_cap=asked.logit_cap,
        head_shards=1,
        q_seq_shards=1,
        interpret=is_cpu(),
    )
    of_row = lambda q, k, v, *ids: kernel(q, k, v, splash.SegmentIds(*ids))  # noqa: E731
    return jnp.moveaxis(jax.vmap(of_row)(query, key, value, *rows), 1, 2)


# FOLDED nn.kernels: Implementations of attention that never hold all of its weights, and how one
# is chosen. `attention.scaled_dot_product_attention` is the paper's function; the fused kernels
# here (Dao et al. 2022) compute the same, block by block, on accelerators. None of them gives the
# weights to anyone or drops some, so what they cannot compute exactly stays with the plain
# function.


__all__ = ["ATTENTION", "AttentionRequirements", "Choice", "FusedKernel", "choose", "noted_choices"]

ATTENTION: Registry[FusedKernel | None] = Registry(
    "model.attention", {"auto": None, "plain": None, "cudnn": CuDNN(), "splash": Splash()}
)
"""Kernels by name; None where `choose` takes no certain one."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """What computes an attention, and why.

    Attributes:
      name: entry of `ATTENTION`.
      reason: why a kernel that was looked at does not; "" where none was, or where one does.
    """

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name

    @property
    def kernel(self) -> FusedKernel | None:
        """None: the plain function."""
        return ATTENTION[self.name]


def choose(name: str, inputs: AttentionInputs, asked: AttentionRequirements) -> Choice:
    """The fastest that is exact for what is asked: under "auto" the first kernel of the platform
    that does not refuse, under the name of a kernel that one, else "plain".

    Raises:
      ValueError: `name` is no entry of `ATTENTION`.
    """
    wanted, here = ATTENTION.find(name), target().platform
    kernels = {key: kernel for key, kernel in ATTENTION.items() if kernel is not None}
    if name == "auto":
        kernels = {key: kernel for key, kernel in kernels.items() if kernel.platform == here}
    else:
        kernels = {} if wanted is None else {name: wanted}
    reasons = []
    for key, kernel in kernels.items():
        reason = _refusal(kernel, inputs, asked)
        if reason is None:
            return _noted(Choice(key))
        reasons.append(f"not {key}: {reason}" if name == "auto" else reason)
    return _noted(Choice("plain", "; ".join(reasons)))


def _refusal(
    kernel: FusedKernel, inputs: AttentionInputs, asked: AttentionRequirements
) -> str | None:
    if kernel.platform != (here := target().platform):
        return f"it runs on a {kernel.platform}, and this is a {here}"
    if inputs.segments is None or not is_divided():
        return "this is no training step on devices that divide rows and heads"
    return asked.unsupported_reason() or kernel.refusal(inputs, asked)


@contextlib.contextmanager
def noted_choices() -> Iterator[list[Choice]]:
    """A context: the list that it gives holds each choice made while models are traced inside."""
    choices: list[Choice] = []
    token = _choices.set(choices)
    try:
        yield choices
    finally:
        _choices.reset(token)


def _noted(choice: Choice) -> Choice:
    choices = _choices.get()
    if choices is not None and choice not in choices:
        choices.append(choice)
    return choice


_choices: contextvars.ContextVar[list[Choice] | None] = contextvars.ContextVar(
    "choices", default=None
)

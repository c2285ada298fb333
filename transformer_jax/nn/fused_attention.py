# SPDX-License-Identifier: Apache-2.0
"""Fused attention kernels for GPUs and TPUs (Dao et al. 2022), and the choice among them.

A fused kernel computes equation 1 block by block and never holds all weights. Attention that no
kernel computes exactly stays with the plain function.

B batch, T queries, S keys, H heads, G heads of keys and values, K key size of a head, V value size
of a head.
"""

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from transformer_jax.nn.attention_inputs import AttentionInputs, Heads
from transformer_jax.nn.masks import Segments
from transformer_jax.nn.per_device import sharded_call, use_sharded_call
from transformer_jax.registry import Registry
from transformer_jax.runtime.platform import is_cpu, target

_TPU_LANES = 128  # elements of a vector register's row
_SPLASH_BLOCKS = (1024, 512, 256, _TPU_LANES)  # the first that divides a row is taken


@dataclasses.dataclass(frozen=True)
class AttentionRequirements:
    """Features that an attention layer needs besides equation 1 (`unsupported_reason`), and the
    dtype of its products."""

    weights: bool = False
    dropout: bool = False
    logit_bias: bool = False
    extra_values: bool = False
    own_steps: bool = False
    logit_cap: float | None = None
    dtype: DTypeLike = jnp.float32

    def unsupported_reason(self) -> str | None:
        """Names a feature that no fused kernel has; None if there is none."""
        reasons = {
            "its weights are read": self.weights,
            "it has dropout on weights (model.attention_dropout_rate)": self.dropout,
            "its positions add to the logits": self.logit_bias,
            "its positions use the weights again": self.extra_values,
            "its layer computes the weights in another way": self.own_steps,
            "its products are not in bfloat16": jnp.dtype(self.dtype) != jnp.bfloat16,
        }
        for reason, holds in reasons.items():
            if holds:
                return reason
        return None


@runtime_checkable
class FusedKernel(Protocol):
    """A drop-in for `attention.scaled_dot_product_attention` on packed rows."""

    platform: ClassVar[str]

    def unsupported_reason(
        self, inputs: AttentionInputs, requirements: AttentionRequirements
    ) -> str | None:
        """Says why it cannot compute this attention exactly and fast; None if it can."""

    def __call__(self, inputs: AttentionInputs, requirements: AttentionRequirements) -> Heads:
        """Outputs of the heads, in `requirements.dtype`. Those of padding are finite, but not the
        zeros of the plain function: nothing reads them, and their gradients are 0."""


@dataclasses.dataclass(frozen=True)
class CuDNN:
    """NVIDIA's kernel, through `jax.nn.dot_product_attention`.

    Masks, and so packing and windows, reach it as a bias of the logits. Padding queries see all
    keys (with a look-ahead mask, those before them): with a bias and 64, 192, 320, ... keys, its
    backward pass on Hopper GPUs returns NaN for queries that see none
    (https://github.com/pytorch/pytorch/issues/196678).
    """

    implementation: str = "cudnn"
    platform: ClassVar[str] = "gpu"

    def unsupported_reason(
        self, inputs: AttentionInputs, requirements: AttentionRequirements
    ) -> str | None:
        capability = float(target().capability or 0)
        size = inputs.query.shape[3]
        if capability < 8:
            return "it runs on NVIDIA GPUs from Ampere on"
        if requirements.logit_cap is not None:
            return "it has no cap for the logits"
        largest = 256 if capability >= 9 else 128
        if size % 8 or size > largest or size != inputs.value.shape[3]:
            return f"it needs keys and values of one size, a multiple of 8 up to {largest}"
        if inputs.query.shape[1] % 2 or inputs.key.shape[1] % 2:
            return "it needs rows of even length"
        return None

    def __call__(self, inputs: AttentionInputs, requirements: AttentionRequirements) -> Heads:
        segments = _segments(inputs)
        mask = inputs.windowed_mask | (segments.query == 0)[:, None, :, None]

        def attend_on_device(heads: tuple[Array, ...], rows: tuple[Array, ...]) -> Heads:
            attend: Any = jax.nn.dot_product_attention
            options = {"is_causal": segments.causal, "implementation": self.implementation}
            return attend(*heads, mask=rows[0], **options)

        heads = tuple(
            x.astype(requirements.dtype) for x in (inputs.query, inputs.key, inputs.value)
        )
        return sharded_call(attend_on_device, heads, (mask,))


class Splash:
    """Splash attention of JAX's Pallas library, for TPUs; it skips blocks that are masked."""

    platform: ClassVar[str] = "tpu"

    def unsupported_reason(
        self, inputs: AttentionInputs, requirements: AttentionRequirements
    ) -> str | None:
        if inputs.query.shape[1] % _TPU_LANES or inputs.key.shape[1] % _TPU_LANES:
            return f"it needs rows whose length is a multiple of {_TPU_LANES}"
        return None

    def __call__(self, inputs: AttentionInputs, requirements: AttentionRequirements) -> Heads:
        from jax.experimental.pallas.ops.tpu import splash_attention as splash  # half a second

        segments = _segments(inputs)
        window = inputs.window

        def attend_on_device(heads: tuple[Array, ...], rows: tuple[Array, ...]) -> Heads:
            query, key, value = (jnp.moveaxis(x, 1, 2) for x in heads)
            shape = query.shape[2], key.shape[2]
            mask: Any = splash.CausalMask(shape) if segments.causal else splash.FullMask(shape)
            if window is not None:
                ahead = 0 if segments.causal else window - 1
                mask = splash.LocalMask(shape, (window - 1, ahead), offset=0)
            q, kv = (next(n for n in _SPLASH_BLOCKS if length % n == 0) for length in shape)
            block_sizes = splash.BlockSizes(
                q, kv, block_q_dkv=q, block_kv_dkv=kv, use_fused_bwd_kernel=True
            )
            kernel = splash.make_splash_mha(
                splash.MultiHeadMask([mask] * query.shape[1]),
                block_sizes=block_sizes,
                attn_logits_soft_cap=requirements.logit_cap,
                head_shards=1,
                q_seq_shards=1,
                interpret=is_cpu(),  # in Pallas's interpreter, for tests
            )

            def attend_in_row(query: Array, key: Array, value: Array, *segment_ids: Array) -> Array:
                return kernel(query, key, value, splash.SegmentIds(*segment_ids))

            return jnp.moveaxis(jax.vmap(attend_in_row)(query, key, value, *rows), 1, 2)

        query = inputs.query / math.sqrt(inputs.query.shape[-1])
        heads = tuple(x.astype(requirements.dtype) for x in (query, inputs.key, inputs.value))
        return sharded_call(attend_on_device, heads, (segments.query, segments.key))


def _segments(inputs: AttentionInputs) -> Segments:
    assert inputs.segments is not None  # `choose_kernel` requires them
    return inputs.segments


ATTENTION: Registry[FusedKernel | None] = Registry(
    "model.attention", {"auto": None, "plain": None, "cudnn": CuDNN(), "splash": Splash()}
)
"""Kernels by name. None: no fixed kernel (`auto` picks one, `plain` is the reference function)."""


@dataclasses.dataclass(frozen=True)
class KernelChoice:
    """The entry of `ATTENTION` that computes an attention, and why the kernels that were considered
    are not used; "" if one is used or none was considered."""

    name: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})" if self.reason else self.name

    @property
    def kernel(self) -> FusedKernel | None:
        return ATTENTION[self.name]


def choose_kernel(
    name: str, inputs: AttentionInputs, requirements: AttentionRequirements
) -> KernelChoice:
    """Chooses the fastest implementation that computes this attention exactly.

    Args:
      name: `model.attention`. "auto" considers each kernel of the platform, a kernel's name that
        kernel; "plain", and attention that no considered kernel supports, get the plain function.

    Raises:
      ValueError: `name` is no entry of `ATTENTION`.
    """
    candidates = {name: ATTENTION.find(name)}
    if name == "auto":
        platform = target().platform
        candidates = {
            key: kernel
            for key, kernel in ATTENTION.items()
            if kernel is not None and kernel.platform == platform
        }
    reasons = []
    for key, kernel in candidates.items():
        if kernel is None:  # the plain function
            continue
        reason = _unsupported_reason(kernel, inputs, requirements)
        if reason is None:
            return _record(KernelChoice(key))
        reasons.append(f"not {key}: {reason}" if name == "auto" else reason)
    return _record(KernelChoice("plain", "; ".join(reasons)))


def _unsupported_reason(
    kernel: FusedKernel, inputs: AttentionInputs, requirements: AttentionRequirements
) -> str | None:
    platform = target().platform
    if kernel.platform != platform:
        return f"it runs on a {kernel.platform}, and this is a {platform}"
    if inputs.mask is None:
        return "devices divide the tokens of a row"
    if inputs.segments is None or use_sharded_call.value is None:
        return "this is no training step on devices that divide rows and heads"
    return requirements.unsupported_reason() or kernel.unsupported_reason(inputs, requirements)


@contextlib.contextmanager
def record_kernel_choices() -> Iterator[list[KernelChoice]]:
    """Context whose list collects the distinct choices made while models are traced."""
    choices: list[KernelChoice] = []
    token = _choices.set(choices)
    try:
        yield choices
    finally:
        _choices.reset(token)


def _record(choice: KernelChoice) -> KernelChoice:
    choices = _choices.get()
    if choices is not None and choice not in choices:
        choices.append(choice)
    return choice


_choices: contextvars.ContextVar[list[KernelChoice] | None] = contextvars.ContextVar(
    "choices", default=None
)

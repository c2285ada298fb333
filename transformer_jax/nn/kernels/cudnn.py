"""NVIDIA's fused attention."""

import dataclasses
import functools
from typing import ClassVar

import jax
from jaxtyping import Array

from transformer_jax.nn.division import on_each_device
from transformer_jax.nn.inputs import AttentionInputs
from transformer_jax.nn.kernels.base import (
    Asked,
    Heads,
    segments_of,
    without_padding,
)
from transformer_jax.nn.masks import window_mask
from transformer_jax.runtime.platform import target


@dataclasses.dataclass(frozen=True)
class CuDNN:
    """NVIDIA's kernel, through `jax.nn.dot_product_attention`. Masks, and so packing and windows,
    reach it as a bias of the logits.

    Attributes:
      implementation: by the name that JAX has for it.
    """

    implementation: str = "cudnn"
    platform: ClassVar[str] = "gpu"

    def refusal(self, inputs: AttentionInputs, asked: Asked) -> str | None:
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

    def __call__(self, inputs: AttentionInputs, asked: Asked) -> Heads:
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
        return without_padding(on_each_device(of_device, heads, (mask,)), segments)

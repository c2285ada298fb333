"""Splash attention, JAX's fused attention for TPUs."""

import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from transformer_jax.nn.division import on_each_device
from transformer_jax.nn.inputs import AttentionInputs
from transformer_jax.nn.kernels.base import (
    Asked,
    Heads,
    segments_of,
    without_padding,
)
from transformer_jax.runtime.platform import is_cpu

_LANES = 128
_BLOCKS = (1024, 512, 256, _LANES)


class Splash:
    """The TPU kernel of JAX's Pallas library: blocks that nobody sees cost nothing."""

    platform: ClassVar[str] = "tpu"

    def refusal(self, inputs: AttentionInputs, asked: Asked) -> str | None:
        if inputs.query.shape[1] % _LANES or inputs.key.shape[1] % _LANES:
            return f"it takes rows whose length is a multiple of {_LANES}"
        return None

    def __call__(self, inputs: AttentionInputs, asked: Asked) -> Heads:
        segments = segments_of(inputs)
        attend = functools.partial(_splash, causal=segments.causal, asked=asked)
        query = inputs.query / math.sqrt(inputs.query.shape[-1])
        heads = tuple(x.astype(asked.dtype) for x in (query, inputs.key, inputs.value))
        return without_padding(
            on_each_device(attend, heads, (segments.query, segments.key)), segments
        )


def _splash(
    heads: tuple[Array, ...], rows: tuple[Array, ...], causal: bool, asked: Asked
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

# SPDX-License-Identifier: Apache-2.0
"""An attention layer with options and a cache of its own: keys and values from a latent vector.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/latent \\
        --modules=docs/recipes/latent_attention.py --config.model.positions=alibi \\
        --config.model.attention_layer=compressed --config.model.compressed.rank=32
"""

import dataclasses
from typing import Annotated

from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.cache import KVCache
from transformer_jax.nn.layers import ATTENTION_LAYERS
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.parameters import Parameter
from transformer_jax.ranges import Range


@dataclasses.dataclass(frozen=True)
class CompressedOptions:
    """Options of the layer, config fields `model.compressed.*`.

    Attributes:
      rank: size of the latent vector.
    """

    rank: Annotated[int, Range(1, 4096)] = 64


@ATTENTION_LAYERS.register("compressed")
class CompressedAttention(MultiHeadAttention):
    """Keys and values are W^UK c and W^UV c of a latent vector c = W^DKV x, which is cached
    (DeepSeek-V2, 2024, section 2.1.2; without its rotated part and its absorbed products)."""

    options = CompressedOptions
    reads = tuple(
        f"model.{name}"
        for name in ("key_size", "value_size", "attention_bias", "attention_scale", "attention")
    )
    position_hooks = ("bias",)  # keys are not rotated
    parameters = (
        Parameter(r"compress/kernel", "matrix", ("model", "rank")),
        Parameter(r"(key|value)_from_latent/kernel", "matrix", ("rank", "heads", "size")),
    )

    def setup(self):
        super().setup()
        c, rank = self.config, self.config.options_of(CompressedOptions).rank
        self.compress = Linear((c.d_model,), (rank,), False, c, c.kernel_std)
        self.key_from_latent = Linear((rank,), (c.num_heads, c.d_k), False, c, c.kernel_std)
        self.value_from_latent = Linear((rank,), (c.num_heads, c.d_v), False, c, c.kernel_std)

    def self_attend(self, x, sequences, deterministic, cache=None):
        latent = self.compress(x)[:, :, None]  # one key for all heads, and no values
        inputs, cache = self.self_inputs(self.queries(x), latent, latent[..., :0], sequences, cache)
        latent = inputs.key[:, :, 0]  # with a cache, of all tokens and beams so far
        key, value = self.key_from_latent(latent), self.value_from_latent(latent)
        encoding = sequences.encoding.of_layer(self.config)
        y = self.attend(x, inputs.replace(key=key, value=value), deterministic, encoding)
        return y.reshape(x.shape), cache

    @classmethod
    def init_cache(cls, config, rows, max_length):
        rank = config.options_of(CompressedOptions).rank
        return KVCache.of_sizes(1, rank, 0, config, rows, max_length)

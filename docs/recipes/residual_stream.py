# SPDX-License-Identifier: Apache-2.0
"""A residual stream: static hyper-connections (Zhu et al. 2024), n streams instead of one.

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/streams \\
        --modules=docs/recipes/residual_stream.py --config.model.residual=streams \\
        --config.model.streams.count=4
"""

import dataclasses
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.nn.parameters import Parameter
from transformer_jax.nn.transformer import RESIDUALS, Residual
from transformer_jax.ranges import Range


@dataclasses.dataclass(frozen=True)
class StreamsOptions:
    """Options of the streams.

    Attributes:
      count: number of streams.
    """

    count: Annotated[int, Range(1, 16)] = 2


@RESIDUALS.register("streams")
class Streams(Residual):
    """Each sublayer reads a sum of n streams, and writes to all; between, the streams are mixed."""

    options = StreamsOptions
    axes = ("position", "stream", "feature")
    parameters = (
        Parameter(r"_residual/(read_weights|write_gains)", "bias", ("streams",)),
        Parameter(r"_residual/mix", "bias", ("streams", "streams")),
    )

    def setup(self):
        super().setup()
        self.count = n = self.config.options_of(StreamsOptions).count
        if not self.of_stack:
            self.weights = self.param("read_weights", nn.initializers.constant(1 / n), (n,))
            self.gains = self.param("write_gains", nn.initializers.ones, (n,))
            self.mix = self.param("mix", lambda key: jnp.eye(n))

    def enter(self, x):  # [N, T, D] -> [N, T, S, D]
        return jnp.repeat(x[:, :, None], self.count, axis=2)

    def read(self, stream):  # [N, T, S, D] -> [N, T, D]
        return super().read(jnp.einsum("ntsd,s->ntd", stream, self.weights).astype(stream.dtype))

    def write(self, stream, y, deterministic):
        y = self.to_add(y, deterministic)[:, :, None]
        mixed = jnp.einsum("ntsd,sr->ntrd", stream, self.mix)
        return (mixed + self.gains[:, None] * y).astype(stream.dtype)

    def leave(self, stream):  # [N, T, S, D] -> [N, T, D]
        return stream.sum(2)

# SPDX-License-Identifier: Apache-2.0
"""A block, and an architecture of such blocks: attention beside the feed-forward layer (GPT-J,
PaLM).

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/side \\
        --modules=docs/recipes/architecture.py --config.model.architecture=parallel_decoder

Every other architecture takes the block too: --config.model.block=parallel.
"""

from transformer_jax.models import MODELS
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.transformer import BLOCKS, Block


@BLOCKS.register("parallel")
class Parallel(Block):
    """x + Attention(Norm(x)) + FFN(Norm(x)), with one norm for both."""

    def __call__(self, stream, sequences, memory, deterministic, cache=None):
        x = self.self_attention_residual.read(stream)
        y, cache = self.self_attention.self_attend(x, sequences, deterministic, cache)
        if memory is not None:  # of an encoder
            y += self.cross_attention.cross_attend(x, memory, deterministic)
        y += self.feed_forward(x, deterministic, sequences.real)
        return self.self_attention_residual.write(stream, y, deterministic), cache


@MODELS.register("parallel_decoder")
class ParallelDecoder(DecoderOnly):
    """A GPT of such blocks."""

    defaults = {**DecoderOnly.defaults, "model.norm": "rms", "model.block": "parallel"}
    reads = ("model.num_layers",)  # not "model.logits_bias": setting it is an error

# SPDX-License-Identifier: Apache-2.0
"""An architecture: a decoder of parallel attention and feed-forward layers (GPT-J, PaLM).

    transformer_jax train --config=tiny_shakespeare_cpu --workdir=runs/side \\
        --modules=docs/recipes/architecture.py --config.model.architecture=parallel_decoder
"""

from transformer_jax.models import MODELS
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.embeddings import Embedding, InputEmbedding
from transformer_jax.nn.layers import attention_class, feed_forward_class
from transformer_jax.nn.norms import final_norm
from transformer_jax.nn.transformer import Decoder, DecoderLayer, Residual


class ParallelLayer(DecoderLayer):
    """x + Attention(Norm(x)) + FFN(Norm(x)), with one norm for both."""

    def setup(self):
        self.self_attention = attention_class(self.config)(self.config)
        self.feed_forward = feed_forward_class(self.config)(self.config)
        self.residual = Residual(self.config)

    def __call__(self, x, sequences, memory, deterministic, cache=None):
        normed = self.residual.before(x)
        y, cache = self.self_attention.self_attend(normed, sequences, deterministic, cache)
        y += self.feed_forward(normed, deterministic, sequences.real)
        return self.residual.after(x, y, deterministic), cache


class ParallelStack(Decoder):
    """A decoder of parallel layers; `Decoder` applies them, each with its cache."""

    def setup(self):
        layers = range(self.num_layers)
        self.layers = [ParallelLayer(self.config.of_layer(i), name=f"layer_{i}") for i in layers]
        self.final_norm = final_norm(self.config)


@MODELS.register("parallel_decoder")
class ParallelDecoder(DecoderOnly):
    """A GPT of parallel layers; inherits `prefill` and `decode_step`."""

    defaults = {**DecoderOnly.defaults, "model.norm": "rms"}
    reads = ("model.num_layers",)  # not "model.logits_bias": setting it is an error

    def setup(self):
        c = self.config
        self.embedding = Embedding(c, c.vocab_size)
        self.input = InputEmbedding(c, causal=True)
        self.decoder = ParallelStack(c, c.num_layers)
        tied = c.tie_embeddings != "none"
        self.projection = self.embedding if tied else Embedding(c, c.vocab_size)

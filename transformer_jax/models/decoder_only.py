"""A decoder without an encoder: GPT (Radford et al. 2018, 2019).

B batch, T tokens, P prompt, D model, V vocabulary; N = B x samples while decoding.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import flax.linen as nn
from jaxtyping import Array, Float, Int

from transformer_jax.nn.attention import Sequences
from transformer_jax.nn.cache import KVCache, after_prompts
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.embeddings import Embedding, InputEmbedding, Unprojected
from transformer_jax.nn.transformer import Decoder


class DecoderOnly(nn.Module):
    """Predicts each token from those before it.

    `prefill` and `decode_step` are what the searches of `decoding/` call.
    """

    config: TransformerConfig

    defaults: ClassVar[Mapping[str, Any]] = {
        "model.norm_placement": "pre",
        "model.activation": "gelu",
        "model.positions": "learned",
        "model.attention_bias": "all",
        "model.initialization": "gpt2",
        "model.scale_embeddings": False,
    }
    """The options of GPT-2, which a config that names this architecture gets unless it says
    otherwise."""
    reads: ClassVar[Collection[str]] = ("model.num_layers", "model.logits_bias")

    def setup(self) -> None:
        c = self.config
        self.embedding = Embedding(c, c.vocab_size)
        self.input = InputEmbedding(c, causal=True)
        self.decoder = Decoder(c, c.num_layers, attends_to_encoder=False)
        tied = c.tie_embeddings in ("all", "target")
        self.projection = self.embedding if tied else Embedding(c, c.vocab_size)
        if c.logits_bias:
            self.param("logits_bias", nn.initializers.zeros, c.padded(c.vocab_size))

    def __call__(self, *inputs: Any, **named: Any) -> Float[Array, "B T V"]:
        """Logits of the token after each position; its inputs are those of `features`."""
        return self.unprojected(*inputs, **named).logits()

    def unprojected(self, *inputs: Any, **named: Any) -> Unprojected:
        """What these logits are made of; its inputs are those of `features`."""
        return self._projected(self.features(*inputs, **named))

    def features(
        self,
        tokens: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        segment_ids: Int[Array, "B T"],
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """The decoder's output for packed rows.

        Without `deterministic` there is dropout, and the rng stream "dropout" is needed.
        """
        x = self.input(self.embedding.embed(tokens), positions, deterministic)
        sequences = Sequences.packed(self.input.position_encoding, positions, segment_ids)
        x, _ = self.decoder(x, sequences, deterministic=deterministic)
        return x

    def prefill(
        self, prompt: Int[Array, "B P"], prompt_lengths: Int[Array, " B"], max_length: int
    ) -> tuple[Float[Array, "B V"], tuple[()], tuple[KVCache, ...]]:
        """Reads prompts of unequal length in one batch.

        Args:
          prompt: tokens.
          prompt_lengths: in 1..P; what lies beyond is not read.
          max_length: positions to make room for, those of the prompt included.

        Returns:
          logits of the first token after the prompt, the memory, which is empty, and the decoding
          state (axis 0 of every leaf is B).
        """
        empty = KVCache.empty(self.config, prompt.shape[0], max_length)
        x, caches = self._decode(prompt, (empty,) * self.config.num_layers)
        last, caches = after_prompts(x, prompt_lengths, caches)
        return self._projected(last).logits()[:, 0], (), caches

    def decode_step(
        self, tokens: Int[Array, " N"], memory: tuple[()], state: tuple[KVCache, ...]
    ) -> tuple[Float[Array, "N V"], tuple[KVCache, ...]]:
        """One more token a row -> logits of the next, and the state grown by one."""
        x, state = self._decode(tokens[:, None], state)
        return self._projected(x).logits()[:, 0], state

    def _decode(
        self, tokens: Int[Array, "N T"], caches: tuple[KVCache, ...]
    ) -> tuple[Float[Array, "N T D"], tuple[KVCache, ...]]:
        positions = caches[0].next_positions(tokens.shape[1])
        x = self.input(self.embedding.embed(tokens), positions, True)
        sequences = Sequences(self.input.position_encoding, positions, mask=None)
        return self.decoder(x, sequences, caches=caches)

    def _projected(self, x: Float[Array, "N T D"]) -> Unprojected:
        """Features with the table that makes logits of them, and the bias where there is one."""
        return self.projection.unprojected(x, self.get_variable("params", "logits_bias"))

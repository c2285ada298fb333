# SPDX-License-Identifier: Apache-2.0
"""A decoder without an encoder: GPT (Radford et al. 2018, 2019).

B batch, T tokens, P prompt, D model, V vocabulary; N = B x samples while decoding.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.nn.cache import Cache, at_prompt_ends, state_bytes
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.embeddings import Embedding, InputEmbedding, Unprojected, output_embedding
from transformer_jax.nn.layers import is_causal
from transformer_jax.nn.masks import PerToken, row_places
from transformer_jax.nn.ring_attention import balance, restore_order
from transformer_jax.nn.sublayers import Sequences
from transformer_jax.nn.transformer import Decoder, init_caches, undivided_reason


class DecoderOnly(nn.Module):
    """Predicts each token from the tokens before it.

    Searches (`decoding`) call `prefill` and `decode_step`.
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
    """Options of GPT-2, unless a config sets them."""
    reads: ClassVar[Collection[str]] = (
        *("model.num_layers", "model.logits_bias", "model.pooler_activation"),
    )

    def setup(self) -> None:
        c = self.config
        self.embedding = Embedding(c, c.vocab_size)
        self.input = InputEmbedding(c, is_causal(c))
        self.decoder = Decoder(c, c.num_layers, attends_to_encoder=False)
        self.projection = output_embedding(self.embedding)
        if c.logits_bias:
            self.param("logits_bias", nn.initializers.zeros, c.padded_vocab_size(c.vocab_size))

    def __call__(self, *inputs: Any, **named: Any) -> Float[Array, "B T V"]:
        """Logits of the token after each position, for the arguments of `features`."""
        return self.unprojected(*inputs, **named).logits()

    def unprojected(self, *inputs: Any, **named: Any) -> Unprojected:
        """Hidden states that predict the token after each position, before the projection."""
        return self._project(self.features(*inputs, **named))

    def features(
        self,
        tokens: PerToken,
        positions: PerToken | None = None,
        segment_ids: PerToken | None = None,
        deterministic: bool = True,
    ) -> Float[Array, "B T D"]:
        """The decoder's output for packed rows (defaults as of `nn.masks.row_places`)."""
        rows = tokens, *row_places(tokens, positions, segment_ids)
        balanced = undivided_reason(self.config) is None
        tokens, positions, segment_ids = balance(rows) if balanced else rows
        x = self.input(self.embedding.embed(tokens), positions, deterministic)
        encoding = self.input.position_encoding
        sequences = Sequences.packed(encoding, positions, segment_ids, tokens, causal=True)
        x, _ = self.decoder(x, sequences, deterministic=deterministic)
        return restore_order(x) if balanced else x

    def prefill(
        self, prompt: Int[Array, "B P"], prompt_lengths: Int[Array, " B"], max_length: int
    ) -> tuple[Float[Array, "B V"], tuple[()], tuple[Cache, ...]]:
        """Reads prompts of unequal lengths, 1..P, into caches with `max_length` slots.

        Returns:
          logits of the first token after the prompt, an empty memory, and the decoding state (axis
          0 of every leaf is B).
        """
        return self.prefill_hidden(prompt, prompt_lengths, max_length)[:3]

    def prefill_hidden(
        self, prompt: Int[Array, "B P"], prompt_lengths: Int[Array, " B"], max_length: int
    ) -> tuple[Float[Array, "B V"], tuple[()], tuple[Cache, ...], Float[Array, "B D"]]:
        """As `prefill`, with the hidden state of each prompt's last token."""
        caches = self.empty_state(prompt.shape[0], max_length)
        real = jnp.arange(prompt.shape[1]) < prompt_lengths[:, None]
        x, caches = self._decode(prompt, caches, real)
        last, caches = at_prompt_ends(x, prompt_lengths, caches)
        return self._project(last).logits()[:, 0], (), caches, last[:, 0]

    def state_bytes(self, length: int) -> int:
        """Bytes of the caches of one row of `length` tokens."""
        return state_bytes(jax.eval_shape(lambda: self.empty_state(1, length)))

    def empty_state(self, rows: int, max_length: int) -> tuple[Cache, ...]:
        """Caches before the first token, with capacity for `max_length` tokens a row."""
        return init_caches(self.config, self.config.num_layers, rows, max_length)

    def decode_step(
        self, tokens: Int[Array, "N ..."], memory: tuple[()], state: tuple[Cache, ...]
    ) -> tuple[Float[Array, "N ... V"], tuple[Cache, ...]]:
        """Decodes one more token of each row, or T more; returns the logits of the token after each
        of them, and the state."""
        return self.decode_step_hidden(tokens, memory, state)[:2]

    def decode_step_hidden(
        self, tokens: Int[Array, "N ..."], memory: tuple[()], state: tuple[Cache, ...]
    ) -> tuple[Float[Array, "N ... V"], tuple[Cache, ...], Float[Array, "N ... D"]]:
        """As `decode_step`, with the hidden state of each token."""
        x, state = self._decode(tokens.reshape(len(tokens), -1), state)
        logits = self._project(x).logits().reshape(*tokens.shape, -1)
        return logits, state, x.reshape(*tokens.shape, -1)

    def _decode(
        self,
        tokens: Int[Array, "N T"],
        caches: tuple[Cache, ...],
        real: Bool[Array, "N T"] | None = None,
    ) -> tuple[Float[Array, "N T D"], tuple[Cache, ...]]:
        positions = caches[0].next_positions(tokens.shape[1])
        x = self.input(self.embedding.embed(tokens), positions, True)
        sequences = Sequences(
            self.input.position_encoding, positions, mask=None, real=real, tokens=tokens
        )
        return self.decoder(x, sequences, caches=caches)

    def _project(self, x: Float[Array, "N T D"]) -> Unprojected:
        return self.projection.unprojected(x, self.get_variable("params", "logits_bias"))

"""What encoder-decoders have in common, whatever they are made of.

B batch, S source, T target, D model, V vocabulary.
"""

from typing import Any, NamedTuple

import flax.linen as nn
from jaxtyping import Array, Float, Int

from transformer_jax.models.config import ModelConfig
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.embeddings import Embedding, Unprojected


class Tokens(NamedTuple):
    """The tokens of packed rows, and where they stand.

    Attributes:
      ids: the tokens.
      positions: from 0 in each sentence.
      segment_ids: of the sentences, from 1; 0 is padding.
    """

    ids: Int[Array, "B T"]
    positions: Int[Array, "B T"]
    segment_ids: Int[Array, "B T"]


class SourceToTarget(nn.Module):
    """Embeddings, which may be shared, and logits; what lies between, a subclass has as `features`.

    It also has `prefill` and `decode_step`, which the searches of `decoding/` call, and says what
    they keep (`kept_bytes`).

    Raises:
      ValueError: source and target share an embedding, and have vocabularies of two sizes.
    """

    config: TransformerConfig | ModelConfig

    def setup(self) -> None:
        c = self.config
        one_input = c.tie_embeddings in ("all", "inputs")
        if one_input and c.source_vocab_size != c.target_vocab_size:
            raise ValueError(
                f"tie_embeddings {c.tie_embeddings!r} needs one joint vocabulary (tokenizer.joint)"
            )
        self.target_embedding = Embedding(c, c.target_vocab_size)
        self.source_embedding = (
            self.target_embedding if one_input else Embedding(c, c.source_vocab_size)
        )
        self.projection = (
            self.target_embedding
            if c.tie_embeddings in ("all", "target")
            else Embedding(c, c.target_vocab_size)
        )
        self.embedding_dropout = Dropout(c.embedding_dropout, c.dropout_bits)
        if c.logits_bias:
            self.param("logits_bias", nn.initializers.zeros, c.padded(c.target_vocab_size))

    def __call__(self, *inputs: Any, **named: Any) -> Float[Array, "B T V"]:
        """Logits of the token after each target position; its inputs are those of
        `unprojected`."""
        return self.unprojected(*inputs, **named).logits()

    def unprojected(
        self,
        source: Int[Array, "B S"],
        source_positions: Int[Array, "B S"],
        source_segment_ids: Int[Array, "B S"],
        target: Int[Array, "B T"],
        target_positions: Int[Array, "B T"],
        target_segment_ids: Int[Array, "B T"],
        deterministic: bool = True,
    ) -> Unprojected:
        """What the logits of the token after each target position are made of, for packed rows.

        Args:
          source: tokens, with their positions and segment ids.
          target: decoder inputs (a sentence shifted right behind a first token), likewise.
          deterministic: no dropout; otherwise the rng stream "dropout" is needed.
        """
        read = Tokens(source, source_positions, source_segment_ids)
        written = Tokens(target, target_positions, target_segment_ids)
        return self._projected(self.features(read, written, deterministic))

    def features(
        self, source: Tokens, target: Tokens, deterministic: bool
    ) -> Float[Array, "B T D"]:
        """The decoder's output for packed rows; arguments as of `unprojected`."""
        raise NotImplementedError

    def kept_bytes(self, length: int) -> int:
        """Bytes that a search keeps of one output of so many tokens."""
        raise NotImplementedError

    def _projected(self, x: Float[Array, "N T D"]) -> Unprojected:
        """Features with the table that makes logits of them, and the bias where there is one."""
        return self.projection.unprojected(x, self.get_variable("params", "logits_bias"))

# SPDX-License-Identifier: Apache-2.0
"""The config section `model`: options of Transformers and of recurrent models."""

import dataclasses
from typing import Annotated

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.recurrent.decoder import SCORES, SPANS
from transformer_jax.nn.recurrent.encoder import DIRECTIONS
from transformer_jax.ranges import OneOf


@dataclasses.dataclass(frozen=True)
class ModelConfig(TransformerConfig):
    """Hyperparameters of a model, for every architecture.

    Attributes:
      cell: recurrent cell, an entry of `nn.recurrent.CELLS`.
      encoder_direction: direction in which the recurrent encoder reads the source: "both" (Schuster
        and Paliwal 1997; each direction has half of d_model), "forward", or "backward", i.e. the
        reversed source (Sutskever et al. 2014).
      attention_score: attention score of the recurrent decoder: "additive" (Bahdanau et al. 2015),
        "dot", "general" or "concat" (Luong et al. 2015), or "none": no attention, only the
        encoder's final states (Sutskever et al. 2014).
      attention_span: source tokens that the recurrent decoder attends to: "global" (all) or
        "local_p", those within 10 of a predicted center (Luong et al. 2015, section 3.2).
      input_feeding: feed the attentional vector of each token to the first decoder layer with the
        next token (Luong et al. 2015, section 3.3). "additive" attention always feeds the context.

    Raises:
      ValueError: as of `TransformerConfig`. `RecurrentEncoderDecoder` checks the options of
        recurrent models.
    """

    cell: str = "lstm"
    encoder_direction: Annotated[str, OneOf(*DIRECTIONS)] = "both"
    attention_score: Annotated[str, OneOf(*SCORES)] = "additive"
    attention_span: Annotated[str, OneOf(*SPANS)] = "global"
    input_feeding: bool = False


TRANSFORMER_FIELDS = tuple(
    f"model.{field.name}"
    for field in dataclasses.fields(TransformerConfig)
    if field.name
    not in (
        *("architecture", "d_model", "num_encoder_layers", "num_decoder_layers", "initialization"),
        *("dropout_rate", "embedding_dropout_rate", "dropout_bits", "dtype", "activation_dtype"),
        *("tie_embeddings", "vocab_multiple", "scale_embeddings", "scale_logits", "logits_bias"),
        *("final_logit_cap", "source_vocab_size", "target_vocab_size", "vocab_size"),
        *("separator_id", "start_id", "options"),
    )
)
"""Fields "model.NAME" that only models of Transformer layers read."""

"""The section `model` of a config: the Transformer's options, and those of recurrent models."""

import dataclasses
from typing import Annotated

from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.recurrent.attention import SCORES, SPANS
from transformer_jax.nn.recurrent.encoder import DIRECTIONS
from transformer_jax.ranges import Length, OneOf

RADIUS = 10


@dataclasses.dataclass(frozen=True)
class ModelConfig(TransformerConfig):
    """The sizes and choices of a model, whatever its architecture.

    Attributes:
      cell: of recurrent layers, an entry of `nn.recurrent.CELLS`.
      encoder_direction: in which the recurrent encoder reads the source: "both" (Schuster and
        Paliwal 1997; half of d_model is for either), "forward", or "backward", from its end: as if
        it were given the source reversed (Sutskever et al. 2014).
      attention_score: what the recurrent decoder weighs the source by: "additive" (Bahdanau et al.
        2015), "dot", "general" or "concat" (Luong et al. 2015), or "none": it sees no more of it
        than the encoder's last states (Sutskever et al. 2014).
      attention_span: which source tokens it sees: "global", or "local_p", those near a centre that
        it predicts (Luong et al. 2015, section 3.2).
      attention_radius: D of "local_p", which sees D tokens on either side of the centre.
      input_feeding: the vector that attention made of a token enters the first layer with the next
        one (Luong et al. 2015, section 3.3); "additive" attention feeds the context in any case.

    Raises:
      ValueError: as `TransformerConfig`; what does not go together in a recurrent model is refused
        by `RecurrentEncoderDecoder`.
    """

    cell: str = "lstm"
    encoder_direction: Annotated[str, OneOf(*DIRECTIONS)] = "both"
    attention_score: Annotated[str, OneOf(*SCORES)] = "additive"
    attention_span: Annotated[str, OneOf(*SPANS)] = "global"
    attention_radius: Length = RADIUS
    input_feeding: bool = False


OF_TRANSFORMERS = tuple(
    f"model.{field.name}"
    for field in dataclasses.fields(TransformerConfig)
    if field.name
    not in (
        *("architecture", "d_model", "num_encoder_layers", "num_decoder_layers", "initialization"),
        *("dropout_rate", "embedding_dropout_rate", "dropout_bits", "dtype", "activation_dtype"),
        *("tie_embeddings", "vocab_multiple", "scale_embeddings", "scale_logits", "logits_bias"),
        *("final_logit_cap", "source_vocab_size", "target_vocab_size", "vocab_size"),
        *("separator_id",),
    )
)
"""The fields "model.NAME" that models made of Transformer layers read, and no others."""

"""Models by the name that `model.architecture` gives: thin assemblies of `nn`.

A class may have `defaults`, {"section.field": value} of configs that name it; `reads`, the fields
that it reads and others may do without; and `ignores`, those that it does without and others need
not say that they read. What it does without is refused where it is set. Without `reads` it is taken
to read all but what it ignores.
"""

import flax.linen as nn

from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.models.recurrent import RecurrentEncoderDecoder
from transformer_jax.registry import Registry

MODELS: Registry[type[nn.Module]] = Registry(
    "model.architecture",
    {
        "encoder_decoder": EncoderDecoder,
        "decoder_only": DecoderOnly,
        "encoder_only": EncoderOnly,
        "recurrent": RecurrentEncoderDecoder,
    },
)

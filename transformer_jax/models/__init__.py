"""Models by the name that `model.architecture` gives: thin assemblies of `nn`."""

import flax.linen as nn

from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.registry import Registry

MODELS: Registry[type[nn.Module]] = Registry(
    "model.architecture",
    {
        "encoder_decoder": EncoderDecoder,
        "decoder_only": DecoderOnly,
        "encoder_only": EncoderOnly,
    },
)

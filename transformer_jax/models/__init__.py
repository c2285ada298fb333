"""Models by the name that `model.architecture` gives: thin assemblies of `nn`."""

from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.encoder_only import EncoderOnly

MODELS = {
    "encoder_decoder": EncoderDecoder,
    "decoder_only": DecoderOnly,
    "encoder_only": EncoderOnly,
}

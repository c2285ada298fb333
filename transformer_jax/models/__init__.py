"""Models by the name that `model.architecture` gives: thin assemblies of `nn`."""

from transformer_jax.models.encoder_decoder import EncoderDecoder

MODELS = {"encoder_decoder": EncoderDecoder}

"""Multi30k, English to German (image captions, 29,000 pairs)."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 1
    config.model = dict(
        d_model=256,
        d_ff=512,
        num_heads=4,
        num_encoder_layers=3,
        num_decoder_layers=3,
        dropout_rate=0.3,
        norm_placement="pre",
    )
    config.tokenizer = dict(kind="bpe", vocab_size=8000)
    config.data = dict(name="multi30k_en_de", max_source_length=64, max_target_length=64)
    config.optimizer = dict(
        schedule="cosine", learning_rate=2e-3, warmup_steps=500, decay_steps=6000, clip_norm=1.0
    )
    config.train = dict(num_steps=6000, tokens_per_batch=2048)
    config.eval = dict(every_steps=500, num_examples=200)
    config.checkpoint = dict(every_steps=200, keep=2, keep_params=10)
    config.logging = dict(every_steps=50)
    return config

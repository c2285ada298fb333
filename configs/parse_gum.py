"""Constituency parsing of GUM, English of many genres (10,224 trees), for two CPU cores."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="parsing", tree_words=1000)
    config.model = dict(
        architecture="encoder_decoder",
        d_model=256,
        d_ff=512,
        num_heads=4,
        num_encoder_layers=3,
        num_decoder_layers=3,
        dropout_rate=0.3,
        norm_placement="pre",
    )
    config.tokenizer = dict(kind="bpe", vocab_size=2000)
    config.data = dict(name="gum_const", max_source_length=128, max_target_length=320)
    config.optimizer = dict(
        schedule="cosine", learning_rate=1.5e-3, warmup_steps=300, decay_steps=5000, clip_norm=1.0
    )
    config.train = dict(num_steps=5000, tokens_per_batch=4096)
    config.eval = dict(every_steps=1000, num_examples=200)
    config.decode = dict(alpha=0.3, max_extra_length=150)
    config.checkpoint = dict(every_steps=250, keep=2, keep_params=8)
    config.logging = dict(every_steps=50)
    return config

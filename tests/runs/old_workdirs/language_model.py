"""A decoder of characters, with a position encoding of the user's own."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.model = dict(
        positions="log_distance",
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_layers=1,
        dropout_rate=0.1,
        dtype="float32",
    )
    config.tokenizer = dict(kind="char", vocab_size=100, normalization="identity")
    config.data = dict(
        name="text",
        documents="line",
        train_text="text/train.en,text/train.de",
        valid_text="text/valid.en",
        max_length=64,
        cache_dir=None,
    )
    config.optimizer = dict(learning_rate=3e-3, warmup_steps=5)
    config.train = dict(num_steps=150, tokens_per_batch=512)
    config.eval = dict(every_steps=50)
    config.decode = dict(batch_size=4, max_extra_length=8)
    config.checkpoint = dict(every_steps=50, keep=1)
    config.logging = dict(every_steps=50)
    return config

"""An encoder-decoder with sentencepiece's BPE, dropout, and a moving average of its parameters."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="translation")
    config.model = dict(
        d_model=16,
        d_ff=32,
        num_heads=2,
        num_encoder_layers=1,
        num_decoder_layers=1,
        dropout_rate=0.1,
        dtype="float32",
    )
    config.tokenizer = dict(kind="bpe", vocab_size=150, normalization="identity")
    config.data = dict(
        name="parallel_text",
        train_source="text/train.en",
        train_target="text/train.de",
        valid_source="text/valid.en",
        valid_target="text/valid.de",
        max_source_length=64,
        max_target_length=64,
    )
    config.optimizer = dict(learning_rate=0.1, warmup_steps=20, ema_decay=0.9)
    config.train = dict(num_steps=150, tokens_per_batch=512)
    config.eval = dict(every_steps=50, num_examples=4)
    config.decode = dict(batch_size=4, max_extra_length=8)
    config.checkpoint = dict(every_steps=50, keep=1)
    config.logging = dict(every_steps=50)
    return config

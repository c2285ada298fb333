"""An encoder that tells the language of a sentence."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="classification")
    config.model = dict(
        d_model=16, d_ff=32, num_heads=2, num_layers=1, max_length=96, dtype="float32"
    )
    config.tokenizer = dict(kind="char", vocab_size=100, normalization="identity")
    config.data = dict(
        name="labeled_tsv", train_text="text/train.tsv", valid_text="text/valid.tsv", max_length=96
    )
    config.optimizer = dict(learning_rate=3e-3, warmup_steps=5)
    config.train = dict(num_steps=150, tokens_per_batch=384)
    config.eval = dict(every_steps=50, num_examples=16)
    config.checkpoint = dict(every_steps=50, keep=1)
    config.logging = dict(every_steps=50)
    return config

"""GPT-2 of 124 million parameters (Radford et al. 2019) on text of your own, for GPUs.

    python -m transformer_jax train --config=configs/gpt2_124m.py --workdir=runs/gpt2 \\
        --config.data.train_text="train-*.txt" --config.data.valid_text=valid.txt

The sizes are the paper's, the optimizer's settings those of GPT-3 (Brown et al. 2020, table 2.1).
The vocabulary has 50,257 tokens, four of them special, where GPT-2 has one. Never trained here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="language_modeling")
    config.model = dict(
        architecture="decoder_only",
        d_model=768,
        d_ff=3072,
        num_heads=12,
        num_layers=12,
        dropout_rate=0.1,
        attention_dropout_rate=0.1,
        positions="learned",
        max_length=1024,
        attention_bias="all",
        norm_placement="pre",
        activation="gelu",
        initialization="gpt2",
        scale_embeddings=False,
    )
    config.tokenizer = dict(kind="byte_bpe", vocab_size=50_257)
    config.data = dict(name="text", documents="file", max_length=1024)
    config.optimizer = dict(
        name="adamw",
        schedule="cosine",
        learning_rate=6e-4,
        warmup_steps=700,
        decay_steps=600_000,
        weight_decay=0.1,
        clip_norm=1.0,
        beta2=0.95,
        epsilon=1e-8,
    )
    config.train = dict(
        num_steps=600_000, tokens_per_batch=524_288, accumulation_steps=16, label_smoothing=0.0
    )
    config.eval = dict(every_steps=2000)
    config.decode = dict(temperature=0.8, top_k=200, max_extra_length=500)
    config.checkpoint = dict(every_steps=1000, keep=2)
    return config

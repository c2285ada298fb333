"""SST-2, the sentiment of film reviews (Socher et al. 2013), of the GLUE benchmark.

    python -m transformer_jax train --config=configs/sst2.py --workdir=runs/sst2 \\
        --config.data.dir=SST-2 --config.train.init_from=runs/bert_small
    python -m transformer_jax evaluate --workdir=runs/sst2 --split=valid

The folder is that of GLUE's download script; the model is that of bert_small. Without `init_from`
it learns from scratch; `--config.optimizer.frozen="^(embedding|input|encoder)/"` trains the head
alone. Seen on the 872 development sentences: 81.2% from the longer of bert_small's runs, 80.5% from
scratch, six minutes each on one thread of a Xeon without AMX.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="classification")
    config.model = dict(
        architecture="encoder_only",
        d_model=128,
        d_ff=512,
        num_heads=4,
        num_layers=4,
        dropout_rate=0.1,
        attention_dropout_rate=0.1,
        positions="learned",
        max_length=128,
        attention_bias="all",
        norm_placement="pre",
        activation="gelu",
        embedding_norm=True,
        num_token_types=2,
        initialization="xavier",
        scale_embeddings=False,
    )
    config.tokenizer = dict(kind="wordpiece", vocab_size=8000, lowercase=True)
    config.data = dict(name="sst2", max_length=128)
    config.optimizer = dict(
        name="adamw",
        schedule="linear",
        learning_rate=5e-4,
        warmup_steps=200,
        decay_steps=2000,
        weight_decay=0.01,
        clip_norm=1.0,
        beta2=0.999,
        epsilon=1e-6,
    )
    config.train = dict(num_steps=2000, tokens_per_batch=1024, label_smoothing=0.0)
    config.eval = dict(every_steps=500, num_examples=1100)
    config.checkpoint = dict(every_steps=250, keep=2)
    return config

# SPDX-License-Identifier: Apache-2.0
"""Pre-training for a task with few labels.

    python -m transformer_jax train --config=configs/bert_small.py --workdir=runs/bert_small ...
    python -m transformer_jax train --config=configs/wikitext2_gpt.py --workdir=runs/gpt ...
    python -m transformer_jax sweep --sweep=experiments/sweeps/pretraining.py --workdir=runs/sst2 \\
        --config.data.dir=SST-2

The first 2,000 sentences of SST-2, about ten epochs, five seeds: a small encoder and a small
decoder of the same size, from scratch and pre-trained on running text. Accuracy is measured on
SST-2's 872 development sentences, which were otherwise used only to choose the learning rate.
From scratch, the vocabulary comes from the 2,000 sentences.
"""

DECODER = {
    "model.architecture": "decoder_only",
    "model.embedding_norm": False,
    "model.num_token_types": 0,
    "tokenizer.kind": "byte_bpe",
    "tokenizer.lowercase": False,
}
BODIES = {"encoder": ("runs/bert_small", {}), "decoder": ("runs/gpt", DECODER)}
LEARNING_RATES = (3e-4, 1e-3)


def get_sweep():
    base = {
        "data.name": "sst2",
        "data.num_train_examples": 2000,
        "train.num_steps": 300,
        "optimizer.warmup_steps": 30,
        "optimizer.decay_steps": 300,
        "eval.every_steps": 100,
        "logging.every_steps": 50,
        "checkpoint.every_steps": 300,
    }
    rows = {}
    for body, (pretrained, model) in BODIES.items():
        for rate in LEARNING_RATES:
            own = {**model, "optimizer.learning_rate": rate}
            rows[f"{body}, from scratch, {rate:g}"] = own
            rows[f"{body}, pre-trained, {rate:g}"] = own | {"train.init_from": pretrained}
    return dict(
        config="configs/cola.py", base=base, rows=rows, seeds=5, metrics=["accuracy", "loss"]
    )

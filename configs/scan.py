# SPDX-License-Identifier: Apache-2.0
"""SCAN, the simple split: commands to action sequences, scored by exact match.

    python -m transformer_jax train --config=configs/scan.py --workdir=runs/scan
    python -m transformer_jax evaluate --workdir=runs/scan --split=test

Other splits, which test generalization: `--config.data.name=scan_length`, `scan_addprim_jump`.
Every word is a token; outputs can be much longer than their sources.

Two Xeon cores without AMX, float32: about 14 minutes; exact match 100.0% of the 4,182 test examples
(experiments/results/scan.md).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="seq2seq")
    config.model = dict(
        d_model=128,
        d_ff=256,
        num_heads=8,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.1,
        norm_placement="pre",
        tie_embeddings="target",
    )
    config.tokenizer = dict(kind="word", vocab_size=64, joint=False)
    config.data = dict(name="scan_simple", max_source_length=64, max_target_length=64)
    config.optimizer = dict(
        schedule="cosine", learning_rate=1e-3, warmup_steps=200, decay_steps=4000, clip_norm=1.0
    )
    config.train = dict(num_steps=4000, tokens_per_batch=2048, label_smoothing=0.0)
    config.eval = dict(every_steps=1000, num_examples=200)
    config.decode = dict(beam_size=1, max_extra_length=60)
    config.checkpoint = dict(every_steps=250, keep=2)
    config.logging = dict(every_steps=50)
    return config

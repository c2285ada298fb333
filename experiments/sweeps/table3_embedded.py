# SPDX-License-Identifier: Apache-2.0
"""Table 3 of "Attention Is All You Need" on the embedded task, in an hour on two CPU cores.

    transformer_jax sweep --sweep=table3_embedded --workdir=runs/table3

The rows are those of table3; the result is in experiments/results/vaswani2017_table3.md.
"""

from table3 import get_sweep as table3


def get_sweep():
    base = {
        "data.synthetic_size": 5000,
        "data.max_source_length": 48,
        "data.max_target_length": 48,
        "model.d_model": 64,
        "model.d_ff": 128,
        "model.num_encoder_layers": 3,
        "model.num_decoder_layers": 3,
        "optimizer.learning_rate": 4e-3,
        "optimizer.warmup_steps": 60,
        "optimizer.decay_steps": 600,
        "train.num_steps": 600,
        "train.tokens_per_batch": 768,
        "train.label_smoothing": 0.1,
        "tokenizer.vocab_size": 1000,
        "eval.every_steps": 600,
        "checkpoint.every_steps": 600,
        "decode.beam_size": 1,
    }
    return table3() | dict(config="quickstart", base=base)

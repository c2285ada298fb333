# SPDX-License-Identifier: Apache-2.0
"""fixed_vector on the embedded task, in 20 minutes on one CPU core: figure 2 of Bahdanau et al.

    transformer_jax sweep --sweep=fixed_vector_embedded --workdir=runs/figure2

The result is in experiments/results/bahdanau2015_figure2.md.
"""

from fixed_vector import get_sweep as fixed_vector


def get_sweep():
    definition = fixed_vector()
    base = {
        "data.name": "synthetic_en_de",
        "data.synthetic_size": 8000,
        "data.max_source_length": 32,
        "data.max_target_length": 32,
        "model.d_model": 64,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.dropout_rate": 0.1,
        "optimizer.learning_rate": 5e-3,
        "optimizer.warmup_steps": 60,
        "optimizer.decay_steps": 600,
        "train.num_steps": 600,
        "train.tokens_per_batch": 768,
        "tokenizer.vocab_size": 600,
        "eval.every_steps": 600,
        "checkpoint.every_steps": 300,
        "decode.beam_size": 1,
    }
    return definition | dict(base=definition["base"] | base)

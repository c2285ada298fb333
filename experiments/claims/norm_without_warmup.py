# SPDX-License-Identifier: Apache-2.0
"""Pre-norm trains without warm-up where post-norm does not (Xiong et al. 2020).

transformer_jax claim norm_without_warmup --workdir=runs/claims/norm_without_warmup
"""

SMALL = {
    "data.synthetic_size": 4000,
    "tokenizer.vocab_size": 800,
    "model.d_model": 64,
    "model.d_ff": 128,
    "model.num_heads": 4,
    "model.num_encoder_layers": 6,
    "model.num_decoder_layers": 6,
    "optimizer.learning_rate": 3e-3,
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 1,
    "train.num_steps": 300,
    "train.tokens_per_batch": 1024,
    "eval.every_steps": 300,
    "eval.num_examples": 1,
    "checkpoint.every_steps": 300,
}


def get_claim():
    return dict(
        statement="Without warm-up, six pre-norm layers reach a lower loss than post-norm layers.",
        config="quickstart",
        base=SMALL,
        rows={
            "pre": {"model.norm_placement": "pre"},
            "post": {"model.norm_placement": "post"},
        },
        metric="loss",
        smallest=0.05,
        source="Xiong et al. 2020, On Layer Normalization in the Transformer Architecture",
    )

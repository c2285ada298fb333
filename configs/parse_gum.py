# SPDX-License-Identifier: Apache-2.0
"""Constituency parsing of GUM, English of many genres (10,224 trees), for two CPU cores.

    python -m transformer_jax train --config=configs/parse_gum.py --workdir=runs/parse_gum \\
        --config.data.dir=GUM
    python -m transformer_jax evaluate --workdir=runs/parse_gum --split=valid --beam_size=10

Eight minutes (on a shared machine): labeled F1 69.9 on dev (69.1 with beam 4), tags 92.3%; with an
encoder initialized from a BERT 76.9 and 94.8% (parse_gum_bert). Right-branching
trees score 17.6, the most frequent structure 13.5. Words are whole tokens, rare ones mapped to
classes; rotary positions learn faster here than sinusoids.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.task = dict(name="parsing", tree_words=4000)
    config.model = dict(
        architecture="encoder_decoder",
        d_model=256,
        d_ff=512,
        num_heads=4,
        num_encoder_layers=3,
        num_decoder_layers=3,
        dropout_rate=0.2,
        norm_placement="pre",
        positions="rotary",
    )
    config.tokenizer = dict(kind="word_classes", vocab_size=6000)
    config.data = dict(name="gum_const", max_source_length=128, max_target_length=320)
    config.optimizer = dict(
        schedule="cosine", learning_rate=1.5e-3, warmup_steps=300, decay_steps=1200, clip_norm=1.0
    )
    config.train = dict(num_steps=1200, tokens_per_batch=4096)
    config.eval = dict(every_steps=400, num_examples=200)
    config.decode = dict(alpha=0.3, max_extra_length=150)
    config.checkpoint = dict(every_steps=250, keep=2, keep_params=8)
    config.logging = dict(every_steps=50)
    return config

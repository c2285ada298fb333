# SPDX-License-Identifier: Apache-2.0
"""The lecture GPT, step 1: one head of attention predicts characters better than a bigram model.

    transformer_jax claim lecture_attention --workdir=runs/claims/lecture \\
        --modules=experiments/claims/modules/without_parts.py

Karpathy's lecture "Let's build GPT" adds one part after another and reports validation losses of
2.5 (bigram), 2.4 (one head), 2.28 (four heads), 2.24 (feed-forward), 2.08 (residual connections)
and 2.06 (layer norm), one seed each. The sizes are the lecture's; training has 2,000 of its 5,000
steps, and W^O exists from the first head on. The bigram model is the same network with a window
of one token: it sees only the character before the one that it predicts.
"""

BARE = {"model.norm": "none", "model.residual_connections": False}
ONE_LAYER = BARE | {"model.num_layers": 1}
ONLY_ATTENTION = ONE_LAYER | {"model.feed_forward": "none"}
ONE_HEAD = ONLY_ATTENTION | {"model.num_heads": 1}


def get_claim():
    return dict(
        statement="One head of attention has a lower validation loss than a bigram model.",
        config="lecture_gpt",
        base={
            "train.num_steps": 2000,
            "eval.every_steps": 2000,
            "checkpoint.every_steps": 2000,
        },
        rows={
            "one head": ONE_HEAD,
            "bigram": ONE_HEAD | {"model.attention_window": 1, "model.positions": "none"},
        },
        smallest=0.02,
        looks=(3, 6),
        source="Karpathy 2023, Let's build GPT",
    )

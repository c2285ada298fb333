# SPDX-License-Identifier: Apache-2.0
"""The lecture GPT over-fits: its validation loss is higher at the end than before.

    transformer_jax claim lecture_overfits --workdir=runs/claims/lecture_overfits

Karpathy's lecture "Let's build GPT" without its dropout: at its full size (10 million parameters, a
million characters) validation losses of 1.5225 at best and 1.5795 later were published. Here 0.16
million parameters and the first 20,000 characters. The learning rate is constant, so that the
shorter run is the beginning of the longer one. Its 1,250 steps were best for a seed that takes
no part in the test; with its own best step, each run would be worse at the end by construction.
`lecture_overfits_in_training` has the training losses of the same runs.
"""

CHARACTERS = 20_000


def get_claim():
    return dict(
        statement="The lecture GPT has a higher validation loss after 2,500 than after 1,250.",
        config="lecture_gpt",
        base={
            "data.num_train_tokens": CHARACTERS,
            "data.max_length": 32,
            "model.max_length": 32,
            "model.d_model": 64,
            "model.d_ff": 256,
            "train.num_steps": 2500,
            "eval.every_steps": 2500,
            "checkpoint.every_steps": 2500,
        },
        rows={
            "1,250 steps": {"train.num_steps": 1250, "eval.every_steps": 1250},
            "2,500 steps": {},
        },
        smallest=0.05,
        looks=(3, 6),
        source="Karpathy 2023, Let's build GPT",
    )

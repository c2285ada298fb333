# SPDX-License-Identifier: Apache-2.0
"""An LSTM recalls more over long distances than a plain recurrent network.

    transformer_jax claim recall_lstm --workdir=runs/claims \\
        --modules=experiments/claims/modules/recall.py

Hochreiter and Schmidhuber 1997: gradients of a plain network vanish over about ten steps; gates
keep them. Encoder-decoders without attention must name the first of 40 to 48 random letters.
"""

STEPS = ("train.num_steps", "optimizer.decay_steps", "eval.every_steps", "checkpoint.every_steps")
TASK = {
    "data.name": "recall",
    "data.max_source_length": 56,
    "data.max_target_length": 8,
    "tokenizer.kind": "char",
    "decode.search": "greedy",
    "model.d_model": 64,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.dropout_rate": 0.0,
    "optimizer.learning_rate": 3e-3,
    "optimizer.warmup_steps": 50,
    "train.tokens_per_batch": 1024,
    "eval.num_examples": 200,
    **dict.fromkeys(STEPS, 600),
}
NETWORK = {
    "model.architecture": "recurrent",
    "model.attention_score": "none",
    "model.encoder_direction": "forward",
}
LSTM = NETWORK | {"model.cell": "lstm"}


def get_claim():
    return dict(
        statement="An LSTM recalls a letter over 40 to 48 steps better than a plain RNN.",
        config="scan",
        base=TASK,
        rows={"LSTM": LSTM, "RNN": NETWORK | {"model.cell": "rnn"}},
        metric="exact_match",
        better="higher",
        smallest=0.05,
        looks=(4, 8),
        source="Hochreiter and Schmidhuber 1997, Long Short-Term Memory",
    )

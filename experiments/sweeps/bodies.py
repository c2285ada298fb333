# SPDX-License-Identifier: Apache-2.0
"""Small bodies for fine-tuning, pre-trained on English and German text with one tokenizer.

    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies.py --workdir=runs/bodies \\
        --config.data.train_text=WIKITEXT2/wiki.train.tokens.gz,TATOEBA/train.de.gz \\
        --config.data.valid_text=TATOEBA/valid.de.gz

The German sentences give the shared vocabulary its German pieces. Results, and the sweep that
starts from these bodies (bodies_translate.py): experiments/results/denoising.md.
"""

STACK = {"model.num_layers": 2}
STACKS = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2}


def get_sweep():
    base = {
        "data.name": "text",
        "data.max_length": 64,
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": 4000,
        "model.d_model": 128,
        "model.d_ff": 512,
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup_steps": 200,
        "train.num_steps": 3000,
        "train.tokens_per_batch": 2048,
        "eval.every_steps": 3000,
        "checkpoint.every_steps": 1000,
    }
    spans = {"task.objective": "spans", **STACKS}
    rows = {
        "causal": {"task.objective": "causal", "model.architecture": "decoder_only", **STACK},
        "spans": spans,
        # For rows from scratch that have the same tokenizer: one step of the warm-up.
        "untrained": spans
        | {"train.num_steps": 1, "eval.every_steps": 1, "optimizer.decay_steps": 3000},
        "masked": {"task.objective": "masked", "model.architecture": "encoder_only", **STACK},
    }
    return dict(config="configs/t5_cpu.py", base=base, rows=rows, seeds=1, metrics=["loss"])

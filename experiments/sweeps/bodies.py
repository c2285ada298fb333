# SPDX-License-Identifier: Apache-2.0
"""Small bodies for fine-tuning, pre-trained on English and German sentences with one tokenizer.

    zcat MULTI30K/train.en.gz | sed -n 2901,15950p > captions.en
    zcat MULTI30K/train.de.gz | sed -n 15951,29000p > captions.de
    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies.py --workdir=runs/bodies \\
        --config.data.train_text=TEXTS --config.data.valid_text=VALID

TEXTS are WIKITEXT2/wiki.train.tokens.gz, train.en.gz and train.de.gz of Tatoeba, captions.en and
captions.de, with commas and without spaces; VALID are sentences of both languages. Only Tatoeba's
are there in both, and no pair that is fine-tuned on is. The sweeps that start from these bodies are
bodies_translate, bodies_parse, bodies_tag and bodies_classify; results:
experiments/results/denoising.md.
"""

BODIES = "runs/bodies"  # the workdir of this sweep
STACK = {"model.num_layers": 2}
STACKS = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2}
SIZES = {"model.d_model": 128, "model.d_ff": 512}


def get_sweep():
    base = SIZES | {
        "data.name": "text",
        "data.documents": "line",
        "data.packing": "apart",
        "data.max_length": 64,
        "tokenizer.kind": "bpe",
        "tokenizer.vocab_size": 4000,
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup_steps": 200,
        "train.num_steps": 8000,
        "train.tokens_per_batch": 4096,
        "eval.every_steps": 2000,
        "checkpoint.every_steps": 1000,
    }
    spans = {"task.objective": "spans", "task.spans.rate": 0.3, **STACKS}
    masked = {"task.objective": "masked", "task.mask_rate": 0.3}
    rows = {
        # For rows from scratch that have the same tokenizer: one step of the warm-up.
        "untrained": spans
        | {"train.num_steps": 1, "eval.every_steps": 1, "optimizer.decay_steps": 8000},
        "spans": spans,
        "masked": masked | {"model.architecture": "encoder_only", **STACK},
        "causal": {"task.objective": "causal", "model.architecture": "decoder_only", **STACK},
    }
    return dict(config="configs/t5_cpu.py", base=base, rows=rows, seeds=1, metrics=["loss"])


def starts():
    """Rows of a sweep that start from the bodies: name of a row -> overrides."""
    bodies = {"from scratch": "untrained"}
    bodies |= {f"from {body}": body for body in ("spans", "masked", "causal")}
    return {row: {"train.init_from": f"{BODIES}/{body}/seed_0"} for row, body in bodies.items()}


def encoder(steps):
    """Settings of an encoder that starts from a body, and is trained for some steps."""
    return SIZES | {
        "model.architecture": "encoder_only",  # not that of the body
        "model.positions": "rotary",
        "model.num_layers": 2,
        "train.tokens_per_batch": 2048,
        "train.num_steps": steps,
        "optimizer.warmup_steps": 100,
        "optimizer.decay_steps": steps,
        "eval.every_steps": steps,
    }

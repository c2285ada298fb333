# SPDX-License-Identifier: Apache-2.0
"""An atlas of objectives: small bodies, pre-trained on English and German with one tokenizer.

    zcat MULTI30K/train.en.gz | sed -n 2901,15950p > captions.en
    zcat MULTI30K/train.de.gz | sed -n 15951,29000p > captions.de
    python -m transformer_jax sweep --sweep=experiments/sweeps/bodies.py --workdir=runs/bodies \\
        --config.data.train_text=TEXTS --config.data.valid_text=VALID

TEXTS are WIKITEXT2/wiki.train.tokens.gz, train.en.gz and train.de.gz of Tatoeba, captions.en and
captions.de, with commas and without spaces; VALID are sentences of both languages. Only Tatoeba's
are there in both, and no pair that is fine-tuned on is. The sweeps that start from these bodies are
bodies_translate, bodies_parse, bodies_tag and bodies_classify; results:
experiments/results/denoising.md.

Claims named before the sweeps were run, each about the mean over seeds after fine-tuning, with
translation on a tenth of Multi30k (BLEU), GUM's trees (labeled F1) and tags (accuracy), and
sentiment on SST-2 (accuracy):

 1. Spans translate better than an encoder-decoder from scratch.
 2. Spans parse better than an encoder-decoder from scratch.
 3. Spans translate better than a prefix language model, with encoder-decoders.
 4. Infilling translates better than spans.
 5. UL2 translates at least as well as spans (no more than 0.5 BLEU below).
 6. UL2 is better than spans for a decoder's continuations (lower loss of the rest of a text).
 7. Masked LM tags better than a causal decoder.
 8. Masked LM is better than diffusion on SST-2.
 9. Diffusion is better than a causal decoder on SST-2.
10. A decoder with a visible prefix is better than a causal one on SST-2.
11. Block diffusion has a lower bound of a text's loss than diffusion.
12. No objective is the best on all four tasks.
"""

BODIES = "runs/bodies"  # the workdir of this sweep
STACKS = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2}
STACK = {"model.num_layers": 2}
SIZES = {"model.d_model": 128, "model.d_ff": 512}
DECODER = {"model.architecture": "decoder_only", **STACK}
PREFIX = DECODER | {"model.attention_layer": "prefix"}
ENCODER = {"model.architecture": "encoder_only", **STACK}
# A name of two words begins with the architecture; a single objective has its usual one.
OBJECTIVES = {
    "spans": STACKS | {"task.spans.rate": 0.3},
    "infilling": STACKS,
    "prefix_lm": STACKS,
    "ul2": STACKS,
    "causal": DECODER,
    "decoder spans": PREFIX | {"task.spans.rate": 0.3},
    "decoder prefix_lm": PREFIX,
    "decoder ul2": PREFIX,
    "masked": ENCODER | {"task.mask_rate": 0.3},
    "diffusion": ENCODER,
    "block_diffusion": ENCODER,
}


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
    rows = {
        row: {"task.objective": row.split()[-1], **overrides}
        for row, overrides in OBJECTIVES.items()
    }
    # For rows from scratch that have the same tokenizer: one step of the warm-up.
    short = {"train.num_steps": 1, "eval.every_steps": 1, "optimizer.decay_steps": 8000}
    rows["untrained"] = rows["spans"] | short
    return dict(config="configs/t5_cpu.py", base=base, rows=rows, seeds=1, metrics=["loss"])


def starts():
    """Rows of a sweep that start from the bodies: name of a row -> overrides."""
    bodies = {"from scratch": "untrained"}
    bodies |= {f"from {body}": body for body in OBJECTIVES}
    return {
        row: {"train.init_from": f"{BODIES}/{body.replace(' ', '_')}/seed_0"}
        for row, body in bodies.items()
    }


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

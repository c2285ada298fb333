# SPDX-License-Identifier: Apache-2.0
"""Objectives on plain text, with three architectures, at equal numbers of tokens.

    python -m transformer_jax sweep --sweep=experiments/sweeps/objectives.py \\
        --workdir=runs/objectives --config.data.dir=WIKITEXT2,GUTENBERG

Encoder-decoders have four layers a stack, the others eight. Each row is a body for fine-tuning:
`--config.train.init_from=runs/objectives/ROW/seed_0`. It was not trained as is.

Claims named before any of it was trained, each about the mean over seeds after fine-tuning, with
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

DECODER = {"model.architecture": "decoder_only", "model.num_layers": 8}
PREFIX = DECODER | {"model.attention_layer": "prefix"}
ENCODER = {"model.architecture": "encoder_only", "model.num_layers": 8, "model.num_token_types": 0}


def get_sweep():
    base = {
        "tokenizer.extra_tokens": 24,
        "train.num_steps": 3000,
        "optimizer.warmup_steps": 300,
        "eval.every_steps": 3000,
    }
    rows = {
        f"encoder-decoder, {objective}": {"task.objective": objective}
        for objective in ("spans", "prefix_lm", "infilling", "ul2")
    }
    rows["decoder, causal"] = DECODER | {"task.objective": "causal"}
    for objective in ("spans", "prefix_lm", "ul2"):
        rows[f"decoder, {objective}"] = PREFIX | {"task.objective": objective}
    for objective in ("masked", "diffusion", "block_diffusion"):
        rows[f"encoder, {objective}"] = ENCODER | {"task.objective": objective}
    return dict(config="configs/t5_cpu.py", base=base, rows=rows, seeds=3, metrics=["loss"])

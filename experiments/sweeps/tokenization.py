# SPDX-License-Identifier: Apache-2.0
"""Tokenization of a translator: characters, BPE, unigram and words.

    python -m transformer_jax sweep --sweep=experiments/sweeps/tokenization.py --workdir=runs/units

Characters, BPE and unigram pieces in three vocabulary sizes, and words, trained for about the same
time. Compare BLEU only: losses are per token, and the rows have different tokens. Character
sequences may be four times as long.
"""

SIZES = (1000, 4000, 8000)


def get_sweep():
    rows = {
        f"{kind} {size}": {"tokenizer.kind": kind, "tokenizer.vocab_size": size}
        for kind in ("bpe", "unigram")
        for size in SIZES
    }
    rows["word 8000"] = {"tokenizer.kind": "word", "tokenizer.vocab_size": 8000}
    longer = {"data.max_source_length": 256, "data.max_target_length": 256}
    rows["char"] = {"tokenizer.kind": "char", "tokenizer.vocab_size": 200, **longer}
    return dict(config="configs/multi30k_en_de_tiny.py", rows=rows, seeds=3, metrics=["bleu"])

"""Which units should a translator read and write?

    python -m transformer_jax sweep --sweep=experiments/tokenization.py --workdir=runs/tokenization

Characters, BPE and unigram pieces in three sizes, and whole words, for about the same time. Only
BLEU compares: a loss is of a token, and tokens differ. Rows of characters are four times as long.
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

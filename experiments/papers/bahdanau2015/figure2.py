# SPDX-License-Identifier: Apache-2.0
"""Figure 2 of Bahdanau et al. 2015: BLEU by length of the sentence, with and without attention.

    transformer_jax reproduce bahdanau2015/figure2 --workdir=runs/figure2

The paper prints no numbers of its figure; the BLEU of all sentences is from its table 1 (models of
up to 50 words, all sentences, English to French), typed and compared with two public
transcriptions. The tiny scale trains three seeds of each model on the embedded task.
"""

from transformer_jax.data.sources import open_split
from transformer_jax.scoring.text import bleu_by_length, score_translations

BOUNDS = (5, 8, 11, 14)
CURVE = ("1-5 words", "6-8 words", "9-11 words", "12-14 words", "15+ words")
SHORT, LONG = CURVE[1], CURVE[-1]

TINY = {
    "data.name": "synthetic_en_de",
    "data.synthetic_size": 8000,
    "data.max_source_length": 32,
    "data.max_target_length": 32,
    "tokenizer.vocab_size": 600,
    "model.d_model": 64,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.dropout_rate": 0.1,
    "optimizer.learning_rate": 5e-3,
    "optimizer.warmup_steps": 60,
    "optimizer.decay_steps": 600,
    "train.num_steps": 600,
    "train.tokens_per_batch": 768,
    "eval.every_steps": 600,
    "checkpoint.every_steps": 300,
    "decode.beam_size": 1,
}


def measure(run):
    """BLEU of the test split, in total and by length; and what is lost on long sentences."""
    pairs = open_split(run.settings.data, "test")
    sources, references = ([pair[side] for pair in pairs] for side in ("source", "target"))
    outputs = run.predict(sources)
    by_length = bleu_by_length(sources, outputs, references, BOUNDS)
    total = {"test bleu": score_translations(outputs, references)["bleu"]}
    return total | by_length | {"lost on long": by_length[SHORT] - by_length[LONG]}


STATEMENTS = {
    "RNNsearch is better than RNNencdec (table 1).": [
        ("RNNsearch", "RNNencdec", "test bleu", "higher")
    ],
    "The performance of RNNencdec drops as the length of sentences increases.": [
        ("RNNencdec", "RNNencdec", LONG, "lower", SHORT)
    ],
    "RNNsearch is more robust to the length of sentences.": [
        ("RNNsearch", "RNNencdec", "lost on long", "lower")
    ],
    "RNNsearch shows no deterioration even with long sentences.": [
        ("RNNsearch", "RNNsearch", LONG, "equal", SHORT)
    ],
}


def get_reproduction():
    return dict(
        title="Figure 2 of Neural Machine Translation by Jointly Learning to Align and Translate "
        "(Bahdanau et al. 2015)",
        published={"RNNencdec": {"test bleu": 17.82}, "RNNsearch": {"test bleu": 26.75}},
        sweep="fixed_vector",
        scales={"tiny": ("multi30k_en_de_rnn", TINY)},
        measure=measure,
        statements=STATEMENTS,
        curve=CURVE,
        axes=("words of the source", "BLEU"),
        notes=[
            "The paper trained each model once, and prints no numbers of its figure. Its BLEU is "
            "that of table 1: models of up to 50 words, all sentences, English to French.",
            f"Long sentences are those of {LONG}, short ones those of {SHORT}.",
        ],
    )

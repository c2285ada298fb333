"""`synthetic_en_de`: a generative grammar of true English-German sentence pairs.

A meaning is drawn (`sampling`) and said in both languages (`english`, `german`), so the pairs are
translations by construction, and the translation of a sentence is a function of it.
"""

from transformer_jax.data.synthetic.dictionary import dictionary_translate
from transformer_jax.data.synthetic.splits import SPLITS, synthetic_split

__all__ = ["SPLITS", "dictionary_translate", "synthetic_split"]

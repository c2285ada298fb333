"""Tokenizers that were made elsewhere: kind "file", taken from their files and kept with them.

`from_files` reads the files (`formats`) and finds what each special token is for (`roles`); what it
returns is stored in a run, and `PublishedTokenizer` loads it.
"""

from transformer_jax.tokenization.published.from_files import from_files
from transformer_jax.tokenization.published.tokenizer import PublishedTokenizer

__all__ = ["PublishedTokenizer", "from_files"]

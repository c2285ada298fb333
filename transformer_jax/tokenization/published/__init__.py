"""Tokenizers that were made elsewhere: kind "file", taken from their files and kept with them.

`from_files` reads the files (`formats`) and finds what each special token is for (`roles`); what it
returns is stored in a run, and `PublishedTokenizer` loads it.
"""

from transformer_jax.tokenization.published.tokenizer import PublishedTokenizer, from_files

__all__ = ["PublishedTokenizer", "from_files"]

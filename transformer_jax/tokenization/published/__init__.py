# SPDX-License-Identifier: Apache-2.0
"""Published tokenizers: kind "file", imported from the files of other libraries.

`import_tokenizer` reads the files and finds the role of each special token. The run stores the
result together with the original files, and `PublishedTokenizer` loads it.
"""

from transformer_jax.tokenization.published.tokenizer import PublishedTokenizer, import_tokenizer

__all__ = ["PublishedTokenizer", "import_tokenizer"]

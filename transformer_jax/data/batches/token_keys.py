"""What tokens are kept under: a digest of all that they depend on."""

import contextlib
import hashlib
import importlib.metadata
import inspect
from pathlib import Path

from transformer_jax import conversations, data, tokenization, trees
from transformer_jax.data.batches.text_digest import text_digest
from transformer_jax.data.examples import Corpus
from transformer_jax.tokenization import Tokenizer

FORMAT = 1
"""Of what is kept."""
_LIBRARIES = ("tokenizers", "sentencepiece")
_PACKAGES = (conversations, data, tokenization, trees)
"""The code that makes text of files, and tokens of text."""


def token_key(identity: str, documents: Corpus, tokenizer: Tokenizer, first: int) -> str:
    """Differs where the tokens may differ.

    Args:
      identity: what the tokenizer has learned, as a digest.
      documents: examples {"text": str}.
      tokenizer: of their text.
      first: the token before each.
    """
    libraries = [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]
    said = [FORMAT, identity, _code_of(tokenizer), first, tokenizer.specials.eos, *libraries]
    digest = hashlib.sha256(repr(said).encode())
    digest.update(text_digest(documents))
    return digest.hexdigest()[:32]


def _code_of(tokenizer: Tokenizer) -> str:
    """A digest of `_PACKAGES`, and of the tokenizer's class, which may be a user's."""
    folders = [Path(str(package.__file__)).parent for package in _PACKAGES]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    with contextlib.suppress(OSError, TypeError):  # defined in a notebook
        files.append(Path(inspect.getfile(type(tokenizer))))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()

"""What tokens are kept under: a digest of all that they depend on."""

import contextlib
import hashlib
import importlib.metadata
import inspect
from itertools import batched
from pathlib import Path

import numpy as np
from tqdm import tqdm

from transformer_jax import tokenization
from transformer_jax.data.examples import Corpus
from transformer_jax.tokenization import Tokenizer

FORMAT = 1
"""Of what is kept."""
ENCODED = ("utf-8", "surrogatepass")
"""How text becomes bytes."""
_LIBRARIES = ("tokenizers", "sentencepiece")
_BAR_AFTER_SECONDS = 2


def token_key(identity: str, documents: Corpus, tokenizer: Tokenizer, first: int) -> str:
    """Differs where the tokens may differ.

    Args:
      identity: what the tokenizer has learned, as a digest.
      documents: examples {"text": str}; all are read.
      tokenizer: of their text.
      first: the token before each.
    """
    libraries = [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]
    said = [FORMAT, identity, _code_of(tokenizer), first, tokenizer.specials.eos, *libraries]
    digest = hashlib.sha256(repr(said).encode())
    digest.update(_text_digest(documents))
    return digest.hexdigest()[:32]


def _code_of(tokenizer: Tokenizer) -> str:
    """A digest of the package that encodes, and of the tokenizer's class, which may be a user's."""
    files = sorted(Path(tokenization.__file__).parent.rglob("*.py"))
    with contextlib.suppress(OSError, TypeError):  # defined in a notebook
        files.append(Path(inspect.getfile(type(tokenizer))))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _text_digest(documents: Corpus) -> bytes:
    digest, texts = hashlib.sha256(), (document["text"] for document in documents)
    bar = tqdm(
        total=len(documents), desc="text", unit="doc", delay=_BAR_AFTER_SECONDS, disable=None
    )
    with bar:
        for chunk in batched(texts, 1024):
            encoded = [text.encode(*ENCODED) for text in chunk]
            digest.update(np.array([len(one) for one in encoded], np.int64))
            digest.update(b"".join(encoded))
            bar.update(len(chunk))
    return digest.digest()

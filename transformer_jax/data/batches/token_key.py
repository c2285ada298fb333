# SPDX-License-Identifier: Apache-2.0
"""Key of cached tokens: a digest of the text, the tokenizer and the code that tokenizes.

Text of files is digested from the bytes of the files. That is about fifty times faster than one
example after another, since no example is made.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
from collections.abc import Buffer, Iterator
from dataclasses import fields
from itertools import batched
from pathlib import Path
from types import FunctionType

import numpy as np
from tqdm import tqdm

from transformer_jax import conversations, data, tokenization, trees
from transformer_jax.data.batches.windows import BAR_AFTER_SECONDS
from transformer_jax.data.examples import Corpora, Corpus, LinePairs, Parsed, Selection
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.files.rows import JsonArray
from transformer_jax.data.files.text import WholeFiles
from transformer_jax.tokenization import Tokenizer

FORMAT = 1
"""Version of the cache's files."""

TEXT_ENCODING = ("utf-8", "surrogatepass")
"""Encoding of text, as arguments of `str.encode`."""

_LIBRARIES = ("tokenizers", "sentencepiece")
_PACKAGES = (conversations, data, tokenization, trees)
"""Code that converts files to text, and text to tokens."""


def token_key(tokenizer_digest: str, documents: Corpus, tokenizer: Tokenizer, first: int) -> str:
    """Key that differs if the tokens may differ.

    Args:
      tokenizer_digest: digest of the tokenizer's vocabulary.
      documents: examples {"text": str}.
      first: token before each document.
    """
    libraries = [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]
    parts = [FORMAT, tokenizer_digest, _code_digest(tokenizer), first, tokenizer.specials.eos]
    digest = hashlib.sha256(repr([*parts, *libraries]).encode())
    digest.update(text_digest(documents))
    return digest.hexdigest()[:32]


def _code_digest(tokenizer: Tokenizer) -> str:
    """Digest of `_PACKAGES` and of the file of the tokenizer's class, which may be a user's."""
    folders = [Path(str(package.__file__)).parent for package in _PACKAGES]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    with contextlib.suppress(OSError, TypeError):  # defined in a notebook
        files.append(Path(inspect.getfile(type(tokenizer))))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


class _UnknownError(Exception):
    """Examples are made from an object whose bytes are unknown."""


def text_digest(documents: Corpus) -> bytes:
    """Digest that differs if the text of documents {"text": str} may differ, for the same code of
    `transformer_jax.data`."""
    digest = hashlib.sha256()
    try:
        for piece in _content(documents):
            digest.update(piece)
    except _UnknownError:
        return _digest_of_examples(documents)
    return digest.digest()


def _content(source: object) -> Iterator[Buffer]:
    """Bytes of everything that examples are made from: their corpus and, recursively, its parts.

    Raises:
      _UnknownError: there is an object of an unknown type.
    """
    yield f"{type(source).__name__} ".encode()
    match source:
        case None | str() | int() | range():
            yield f"{source!r} ".encode(*TEXT_ENCODING)
        case tuple() | list():
            yield f"{len(source)} ".encode()
            for element in source:
                yield from _content(element)
        case np.ndarray():
            yield f"{source.dtype.str} {source.shape} ".encode()
            yield np.ascontiguousarray(source)
        case TextLines():
            yield f"{len(source.content)} ".encode()
            yield source.content
        case WholeFiles():
            yield from _content(tuple(map(TextLines, source.paths)))
        case functools.partial():
            yield from _content((source.func, source.args, *sorted(source.keywords.items())))
        case FunctionType():
            name = f"{source.__module__}.{source.__qualname__} "
            if not name.startswith("transformer_jax.data.") or "<" in name:  # such as a lambda
                raise _UnknownError
            yield name.encode()
        case Selection() | Parsed() | LinePairs() | Corpora() | JsonArray():
            for field in fields(source):
                yield from _content(getattr(source, field.name))
        case _:
            raise _UnknownError


def _digest_of_examples(documents: Corpus) -> bytes:
    digest = hashlib.sha256()
    texts = (document["text"] for document in documents)
    with tqdm(
        total=len(documents), desc="text", unit="doc", delay=BAR_AFTER_SECONDS, disable=None
    ) as bar:
        for chunk in batched(texts, 1024):
            encoded = [text.encode(*TEXT_ENCODING) for text in chunk]
            # With the sizes, the same text divided into other documents has another digest.
            digest.update(np.array([len(text) for text in encoded], np.int64))
            digest.update(b"".join(encoded))
            bar.update(len(chunk))
    return digest.digest()

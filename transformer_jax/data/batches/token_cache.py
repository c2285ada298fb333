# SPDX-License-Identifier: Apache-2.0
"""Tokenized text on disk, encoded once for all runs that read it.

    FOLDER/KEY/tokens    int32: number of tokens of each document, then the token stream
    FOLDER/KEY/parts/    during encoding: the same for ranges of documents; they outlive a kill

All are files of `runtime.files`. The key is a digest of the text, the tokenizer and the code, so
cached tokens equal newly encoded ones. Text of files is digested from the bytes of the files, about
fifty times faster than one example after another, since no example is made.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import logging
from array import array
from collections.abc import Buffer, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FunctionType
from typing import BinaryIO, Literal

import numpy as np
from tqdm import tqdm

from transformer_jax.buckets.bucket import Bucket, is_address
from transformer_jax.data.batches.windows import (
    BAR_AFTER_SECONDS,
    TokenSlices,
    TokenStream,
    document_separator,
)
from transformer_jax.data.examples import (
    Corpora,
    Corpus,
    Example,
    Features,
    LinePairs,
    Parsed,
    RandomAccess,
    Selection,
    map_corpora,
)
from transformer_jax.data.files.lines import TextLines
from transformer_jax.data.files.text import WholeFiles
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import (
    NoLocksError,
    cache_folder,
    open_locked,
    read_made,
    remake,
    remove,
)
from transformer_jax.summary import counted
from transformer_jax.tokenization import Tokenizer, Tokenizers, encode_batch

logger = logging.getLogger(__name__)

_SIDES = ("source", "target")
_FORMAT = 2
"""Version of the cache's files."""
_TEXT_ENCODING = ("utf-8", "surrogatepass")
_PART_BYTES = 2**22
_MAX_PARTS = 1024
_MIN_BYTES = 2**22
"""Bytes of the shortest text that is cached; shorter text is encoded in a second or two."""
_PARTS_PER_HELPER = 8
"""Fewer parts are encoded before another process has started."""
_LIBRARIES = ("tokenizers", "sentencepiece")
_PACKAGE = Path(__file__).parents[2]
_SOURCES = ("conversations/**/*.py", "data/**/*.py", "tokenization/**/*.py", "trees.py")
"""Code that converts files to text, and text to tokens."""


@dataclass(frozen=True)
class TokenCache:
    """Cache of tokenized text.

    Attributes:
      folder: folder or bucket address, as `data.cache_dir`; None: no cache.
      num_workers: processes that encode long text beside this one, as `data.num_workers`.
    """

    folder: str | None = None
    num_workers: int = 0

    def read_or_encode(
        self, documents: Corpus, tokenizer: Tokenizer, tokenizer_digest: str | None, first: int
    ) -> TokenStream | None:
        """Returns documents {"text": str} as a stream, equal to that of `store_token_stream`.

        Args:
          tokenizer_digest: digest of the tokenizer's vocabulary; None: it has none.
          first: token before each document.

        Returns:
          The stream; None if there is no cache, the tokenizer has no digest or no file with its
          code, or the text is too short to be cached.

        Raises:
          UserError: the text is empty, the bucket cannot be used, or the configured folder has no
            room or cannot be written.
        """
        if self.folder is None or tokenizer_digest is None:
            return None
        bucket = Bucket(self.folder) if is_address(self.folder) else None
        is_own = self.folder != "auto" and bucket is None
        folder = Path(self.folder).expanduser() if is_own else cache_folder("tokens")
        size = _num_bytes(documents)
        if folder is None or size < _MIN_BYTES:
            return None
        try:
            key = token_key(tokenizer_digest, documents, tokenizer, first)
        except _UnknownError:
            return None
        num_parts = int(min(size // _PART_BYTES, _MAX_PARTS, len(documents)))
        encoding = _Encoding(folder / key, documents, tokenizer, first, num_parts)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return encoding.read() or self._encode(encoding, bucket)
        except OSError as error:
            problem = f"cannot keep tokens in {folder}: {error.strerror or error}"
        if self.folder != "auto":
            raise UserError(
                f"{problem}; set data.cache_dir to a folder with room for 4 bytes a token, or to "
                "none"
            )
        logger.warning("%s; text is tokenized at each start", problem)
        return None

    def _encode(self, encoding: "_Encoding", bucket: Bucket | None) -> TokenStream:
        """The stream from the bucket, or encoded and copied there."""
        name = f"{encoding.folder.name}/{encoding.path.name}"
        with encoding.locked():  # of runs that start together, one encodes
            stream = encoding.read()
            if stream is None and bucket and name in bucket.entries(name):
                bucket.download(name, encoding.path)
                stream = encoding.read()
            if stream is None:
                helpers = min(self.num_workers, encoding.num_parts // _PARTS_PER_HELPER)
                stream = encoding.make(helpers)
                if bucket:
                    bucket.upload(encoding.path, name)
        return stream


def _num_bytes(documents: Corpus) -> float:
    """Bytes of all documents, estimated from at most 100 of them."""
    sample = np.linspace(0, len(documents) - 1, min(len(documents), 100)).astype(int)
    sampled = sum(len(documents[i]["text"].encode(*_TEXT_ENCODING)) for i in sample.tolist())
    return sampled * len(documents) / max(1, len(sample))


@dataclass(frozen=True)
class _Encoding:
    """Documents that are encoded in parts, and joined in the folder of their key."""

    folder: Path
    documents: Corpus
    tokenizer: Tokenizer
    first: int
    num_parts: int

    @property
    def path(self) -> Path:
        return self.folder / "tokens"

    @property
    def _separator(self) -> np.ndarray:
        return document_separator(self.first, self.tokenizer.specials.eos)

    def locked(self) -> contextlib.AbstractContextManager[object]:
        """Context in which no other process encodes, if the file system has locks."""
        self.folder.mkdir(exist_ok=True)
        try:
            return open_locked(self.folder / "lock", wait=True)
        except NoLocksError:
            return contextlib.nullcontext()

    def read(self) -> TokenStream | None:
        """The stream; None if it has to be made."""
        content = read_made(self.path, self.folder.name)
        return None if content is None else self._stream(content)

    def _stream(self, content: memoryview) -> TokenStream:
        logger.info("tokens of %s from %s", counted(len(self.documents), "document"), self.folder)
        values = np.frombuffer(content, np.int32)
        sizes = values[: len(self.documents)].astype(np.int64)
        return TokenStream.from_sizes(values[len(sizes) :], sizes, len(self._separator))

    def make(self, helpers: int) -> TokenStream:
        """Encodes the stream with `helpers` more processes."""
        from transformer_jax.data.batches.workers import helper_processes

        with helper_processes(self.encode_parts, helpers):
            self.encode_parts()
        stream = self._stream(remake(self.path, self.folder.name, self._join))
        remove(self.folder / "parts")
        return stream

    def encode_parts(self) -> None:
        """Encodes all parts, in a random order: processes rarely encode the same one."""
        numbers = np.random.default_rng().permutation(self.num_parts)
        for i in tqdm(numbers, "tokens", unit="part", delay=BAR_AFTER_SECONDS, disable=None):
            # Reading a part verifies it, which `_join` does once. Here every process would read all
            # parts of the others.
            if not self._part_path(i).exists():
                self._part(i)

    def _part_path(self, number: int) -> Path:
        return self.folder / "parts" / f"{number:05}"

    def _part(self, number: int) -> np.ndarray:
        """Sizes of a range of documents, then each document with a separator after it, int32."""
        encode = functools.partial(self._encode_part, number)
        content = remake(self._part_path(number), self.folder.name, encode)
        return np.frombuffer(content, np.int32)

    def _range(self, number: int) -> range:
        count = len(self.documents)
        return range(count * number // self.num_parts, count * (number + 1) // self.num_parts)

    def _encode_part(self, number: int, file: BinaryIO) -> None:
        texts = [self.documents[i]["text"] for i in self._range(number)]
        encoded = [np.asarray(ids, np.int32) for ids in encode_batch(self.tokenizer, texts)]
        file.write(np.array([len(tokens) for tokens in encoded], np.int32))
        for tokens in encoded:
            file.write(tokens)
            file.write(self._separator)

    def _join(self, file: BinaryIO) -> None:
        """Writes the sizes of all documents, then the first token and the tokens of all parts."""
        for i in range(self.num_parts):
            file.write(self._part(i)[: len(self._range(i))])
        file.write(np.array([self.first], np.int32))
        for i in range(self.num_parts):
            file.write(self._part(i)[len(self._range(i)) :])


def token_key(tokenizer_digest: str, documents: Corpus, tokenizer: Tokenizer, first: int) -> str:
    """Key that differs if the tokens may differ.

    Args:
      tokenizer_digest: digest of the tokenizer's vocabulary.
      documents: examples {"text": str}.
      first: token before each document.

    Raises:
      _UnknownError: the tokenizer's class is in no file.
    """
    code = [path for pattern in _SOURCES for path in sorted(_PACKAGE.glob(pattern))]
    reads_text = getattr(tokenizer, "base", tokenizer)  # of an `ExtendedTokenizer`
    try:
        code.append(Path(inspect.getfile(type(reads_text))))  # which may be a user's
    except (OSError, TypeError) as error:  # defined in a notebook, where it may change
        raise _UnknownError from error
    code_digest = hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest()
    libraries = [f"{name} {importlib.metadata.version(name)}" for name in _LIBRARIES]
    parts = [_FORMAT, tokenizer_digest, code_digest, first, tokenizer.specials.eos, *libraries]
    digest = hashlib.sha256(repr(parts).encode())
    digest.update(text_digest(documents))
    return digest.hexdigest()[:32]


class _UnknownError(Exception):
    """Examples or tokens are made by an object whose bytes are unknown."""


def text_digest(documents: Corpus) -> bytes:
    """Digest that differs if the text of documents {"text": str} may differ, for the same code of
    `transformer_jax.data`."""
    digest = hashlib.sha256()
    try:
        for piece in _content(documents):
            digest.update(piece)
    except _UnknownError:
        digest = hashlib.sha256()
        for document in tqdm(documents, "text", unit="doc", delay=BAR_AFTER_SECONDS, disable=None):
            text = document["text"].encode(*_TEXT_ENCODING)
            # With the sizes, the same text divided into other documents has another digest.
            digest.update(len(text).to_bytes(8))
            digest.update(text)
    return digest.digest()


def _content(source: object) -> Iterator[Buffer]:
    """Bytes of everything that examples are made from: their corpus and, recursively, its parts.

    Raises:
      _UnknownError: there is an object of an unknown type.
    """
    yield f"{type(source).__name__} ".encode()
    match source:
        case None | str() | int() | range():
            yield f"{source!r} ".encode(*_TEXT_ENCODING)
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
            args = [tuple(arg.items()) if isinstance(arg, dict) else arg for arg in source.args]
            yield from _content((source.func, args, *sorted(source.keywords.items())))
        case FunctionType():
            name = f"{source.__module__}.{source.__qualname__} "
            if not name.startswith("transformer_jax.data.") or "<" in name:  # such as a lambda
                raise _UnknownError
            yield name.encode()
        case Selection() | Parsed() | LinePairs() | Corpora():
            for field in fields(source):
                yield from _content(getattr(source, field.name))
        case _:
            raise _UnknownError


class LazyDocuments:
    """Documents as of a `TokenStream`, encoded when they are first requested and kept in memory.

    Args:
      documents: examples {"text": str}.
    """

    room = 2**24
    """Tokens from which on all are forgotten."""

    def __init__(self, documents: Corpus, tokenizer: Tokenizer):
        self._documents = documents
        self._tokenizer = tokenizer
        self._forget()

    def _forget(self) -> None:
        # Place 0 stays empty, so that a document which ends there is not encoded.
        self._tokens = array("i", [0])
        self.starts = np.zeros(len(self._documents), np.int32)
        self.ends = np.zeros(len(self._documents), np.int32)

    def __reduce__(self) -> tuple[type, tuple[Corpus, Tokenizer]]:
        return LazyDocuments, (self._documents, self._tokenizer)

    @property
    def tokens(self) -> "LazyDocuments":
        """This object, which takes tokens from those encoded so far (`take`)."""
        return self

    def take(self, places: np.ndarray, mode: Literal["clip"]) -> np.ndarray:
        """`np.ndarray.take` of the tokens so far."""
        return np.frombuffer(self._tokens, np.int32).take(places, mode=mode)

    def document_ranges(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Starts and stops of the tokens of these documents, int32 [n] each."""
        if len(self._tokens) > self.room:
            self._forget()
        missing = indices[self.ends[indices] == 0].tolist()
        if missing:
            texts = [self._documents[i]["text"] for i in missing]
            for index, tokens in zip(missing, encode_batch(self._tokenizer, texts), strict=True):
                self.starts[index] = len(self._tokens)
                self._tokens.extend(tokens)
                self.ends[index] = len(self._tokens)
        return self.starts[indices], self.ends[indices]


@dataclass(frozen=True, repr=False)
class TokenPairs(RandomAccess[Features]):
    """Pairs as tokens without special ones, {side: int32 [n]}; document i of each stream is one."""

    streams: Mapping[str, TokenStream | LazyDocuments]

    def __len__(self) -> int:
        return min(len(stream.starts) for stream in self.streams.values())

    def item(self, index: int) -> Features:
        indices = np.array([index])
        return {side: documents.tokens(indices) for side, documents in self.slices.items()}

    @property
    def slices(self) -> dict[str, TokenSlices]:
        """The tokens of all pairs."""
        return {
            side: TokenSlices(stream.tokens, stream.document_ranges)
            for side, stream in self.streams.items()
        }


def tokenize_pairs(
    examples: Corpus, tokenizers: Tokenizers, cache: TokenCache
) -> Sequence[Features]:
    """Tokens of both sides of each pair, {"source": int32 [n], "target": int32 [m]}, without
    special tokens.

    Large sets are encoded now, and cached. Small sets, or all without a cache, are encoded when
    their items are first requested.

    Args:
      examples: pairs {"source": str, "target": str}.

    Raises:
      UserError: a folder that the user configured has no room for the tokens.
    """

    def tokenize(corpus: Corpus) -> Sequence[Features]:
        streams = {}
        for side in _SIDES:
            tokenizer = tokenizers.text(side)
            texts = Parsed(corpus, functools.partial(_side_example, side))
            digest = tokenizers.sha256.get(side)
            stream = cache.read_or_encode(texts, tokenizer, digest, first=tokenizer.specials.eos)
            streams[side] = stream or LazyDocuments(texts, tokenizer)
        return TokenPairs(streams)

    return map_corpora(examples, tokenize)


def _side_example(side: str, pair: Example) -> Example:
    return {"text": pair[side]}

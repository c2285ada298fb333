# SPDX-License-Identifier: Apache-2.0
"""Tokenized text on disk, encoded once for all runs and processes that read it.

    FOLDER/KEY/index.json    digests of the other files; written last
    FOLDER/KEY/tokens.bin    the token stream, int32
    FOLDER/KEY/sizes.npy     number of tokens of each document, int64
    FOLDER/KEY/parts/        during encoding: ranges of documents, each encoded by one process

The key is a digest of the text, the tokenizer and the code (`token_key`), so cached tokens equal
newly encoded ones. Processes that need the same text at the same time share the work. Parts that a
killed process has finished are not encoded again.

Links in the cache are not followed, and damaged files are made again. The digests find damage, not
forgery: whoever can write to the folder, or to the bucket, can replace tokens and digests together.
A folder that is made here is private.
"""

import contextlib
import functools
import hashlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from transformer_jax.buckets.bucket import Bucket, is_address
from transformer_jax.data.batches.token_key import FORMAT, TEXT_ENCODING, token_key
from transformer_jax.data.batches.windows import (
    BAR_AFTER_SECONDS,
    TokenStream,
    document_separator,
)
from transformer_jax.data.examples import Corpora, Corpus, Example, Features, Parsed, RandomAccess
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import (
    atomic_writer,
    cache_folder,
    open_locked,
    open_regular,
    read_cached,
    read_regular,
    remove,
    write_atomic,
)
from transformer_jax.tokenization import Tokenizer, Tokenizers

logger = logging.getLogger(__name__)

_SIDES = ("source", "target")
_FILES = ("tokens.bin", "sizes.npy", "index.json")
_PARTS = "parts"
_PART_BYTES = 2**22
_MAX_PARTS = 1024
_MIN_BYTES = 2**22
"""Bytes of the shortest text that is cached; shorter text is encoded in a second or two."""
_PARTS_PER_HELPER = 8
"""Fewer parts are encoded before another process has started."""


@dataclass(frozen=True)
class TokenCacheOptions:
    """Options of the token cache in the config.

    Attributes:
      folder: folder or address, as `data.cache_dir`; None: no cache.
      num_workers: processes that encode beside this one, as `data.num_workers`.
    """

    folder: str | None = None
    num_workers: int = 0

    def open(self, tokenizer_digest: str | None) -> "TokenCache | None":
        """Opens the cache for a tokenizer.

        Args:
          tokenizer_digest: digest of the tokenizer's vocabulary; None: it has none.

        Returns:
          the cache; None if there is no digest, no cache is configured, or the user has no home.

        Raises:
          UserError: the bucket cannot be reached.
        """
        if self.folder is None or tokenizer_digest is None:
            return None
        if self.folder != "auto" and not is_address(self.folder):
            folder = Path(self.folder).expanduser()
            return TokenCache(folder, tokenizer_digest, True, num_workers=self.num_workers)
        user_folder = cache_folder("tokens")
        bucket = None if self.folder == "auto" else Bucket(self.folder)
        if user_folder is None:
            return None
        is_required = bucket is not None
        return TokenCache(user_folder, tokenizer_digest, is_required, bucket, self.num_workers)


@dataclass(frozen=True)
class TokenCache:
    """Cache of tokenized text.

    Attributes:
      folder: created if missing. The processes of a job may share it, or each machine has one.
      tokenizer_digest: digest of the tokenizer's vocabulary.
      is_required: raise an error if the folder cannot be used (the user configured it); otherwise
        the cache is skipped with a warning.
      bucket: copy of the cache for other machines.
      num_workers: processes that encode long text beside this one.
    """

    folder: Path
    tokenizer_digest: str
    is_required: bool
    bucket: Bucket | None = None
    num_workers: int = 0

    def read_or_encode(
        self, documents: Corpus, tokenizer: Tokenizer, first: int
    ) -> TokenStream | None:
        """Returns documents {"text": str} as a stream, equal to that of `store_token_stream`; None
        if the text is too short to be cached.

        Raises:
          UserError: the text is empty, the bucket cannot be used, or the configured folder has no
            room or cannot be written.
        """
        # Bytes of all documents, estimated from at most 100 of them.
        sample = np.linspace(0, len(documents) - 1, min(len(documents), 100)).astype(int)
        sampled = sum(len(documents[i]["text"].encode(*TEXT_ENCODING)) for i in sample.tolist())
        size = sampled * len(documents) / max(1, len(sample))
        if size < _MIN_BYTES:
            return None
        num_parts = int(min(size // _PART_BYTES, _MAX_PARTS, len(documents)))
        key = token_key(self.tokenizer_digest, documents, tokenizer, first)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            cached = _CachedStream(self.folder / key, documents, tokenizer, first, num_parts)
            return cached.read() or self._download(cached) or self._encode(cached)
        except OSError as error:
            problem = f"cannot keep tokens in {self.folder}: {error.strerror or error}"
        if self.is_required:
            raise UserError(
                f"{problem}; set data.cache_dir to a folder with room for 4 bytes a token, or to "
                "none"
            )
        logger.warning("%s; text is tokenized at each start", problem)
        return None

    def _download(self, cached: "_CachedStream") -> TokenStream | None:
        """Copies the stream from the bucket; None if it is not there."""
        names = [f"{cached.folder.name}/{name}" for name in _FILES]
        if self.bucket is None or names[-1] not in self.bucket.entries(cached.folder.name):
            return None
        for name in names:
            self.bucket.download(name, self.folder / name)
        return cached.read()

    def _encode(self, cached: "_CachedStream") -> TokenStream:
        helpers = min(self.num_workers, cached.num_parts // _PARTS_PER_HELPER)
        stream = cached.encode(helpers)
        if self.bucket is not None:
            for name in _FILES:
                self.bucket.upload(cached.folder / name, f"{cached.folder.name}/{name}")
        return stream


@dataclass(frozen=True)
class _CachedStream:
    """Cached stream in a folder of its own."""

    folder: Path
    documents: Corpus
    tokenizer: Tokenizer
    first: int
    num_parts: int

    def read(self) -> TokenStream | None:
        """Reads the stream; None if it is missing or damaged. A damaged stream is removed."""
        for folder in (self.folder, self._parts_folder):
            if folder.is_symlink() or folder.is_file():  # not made by this program
                remove(folder)
        with contextlib.suppress(Exception):
            return self._read()
        with _locked(self.folder.with_suffix(".lock"), wait=True):
            # Another process may have made it again meanwhile.
            return read_cached(self._index, lambda _: self._read())

    def _read(self) -> TokenStream:
        """Reads the stream. FileNotFoundError: it is not complete."""
        index = json.loads(read_regular(self._index))
        files = {name: self.folder / name for name in _FILES[:-1]}
        for name, path in files.items():
            if not path.exists() or _digest(path) != index["sha256"][name]:
                raise ValueError(f"{name} is not what was written")
        tokens = np.asarray(np.memmap(files["tokens.bin"], np.int32, "r"))
        sizes = np.load(files["sizes.npy"])
        stream = TokenStream.from_sizes(tokens, sizes, len(self._separator))
        logger.info("tokens of %d documents from %s", len(self.documents), self.folder)
        return stream

    def encode(self, helpers: int) -> TokenStream:
        """Encodes the stream with `helpers` more processes, and with others that need it too."""
        self.folder.mkdir(mode=0o775, parents=True, exist_ok=True)
        self._parts_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        from transformer_jax.data.batches.workers import helper_processes

        with helper_processes(self.encode_missing, helpers):
            while not self._is_complete():
                self.encode_missing()
        stream = self.read()
        if stream is None:
            raise OSError(f"what was written to {self.folder} is not what is read")
        return stream

    def encode_missing(self) -> None:
        """Encodes the parts that no process has finished or claimed."""
        missing = [i for i in range(self.num_parts) if not self._part(i).exists()]
        encoded = 0
        for number in tqdm(missing, "tokens", unit="part", delay=BAR_AFTER_SECONDS, disable=None):
            with _locked(self._part(number).with_suffix(".lock")) as is_locked:
                if is_locked and not self._part(number).exists() and not self._index.exists():
                    self._encode_part(number)
                    encoded += 1
        if missing and not encoded:
            time.sleep(0.2)  # other processes encode them

    @property
    def _parts_folder(self) -> Path:
        return self.folder / _PARTS

    @property
    def _index(self) -> Path:
        return self.folder / _FILES[-1]

    @property
    def _separator(self) -> np.ndarray:
        return document_separator(self.first, self.tokenizer.specials.eos)

    def _part(self, number: int) -> Path:
        return self._parts_folder / f"{number:05}.npz"

    def _encode_part(self, number: int) -> None:
        count = len(self.documents)
        start = count * number // self.num_parts
        stop = count * (number + 1) // self.num_parts
        texts = (self.documents[i]["text"] for i in range(start, stop))
        encoded = [np.asarray(self.tokenizer.encode(text), np.int32) for text in texts]
        stream = [piece for tokens in encoded for piece in (tokens, self._separator)]
        sizes = [len(tokens) for tokens in encoded]
        with atomic_writer(self._part(number)) as file:
            np.savez(file, tokens=np.concatenate(stream), sizes=np.array(sizes))

    def _is_complete(self) -> bool:
        """Returns True if the stream is complete; joins the parts once all of them are there."""
        with _locked(self.folder.with_suffix(".lock"), wait=True):
            if self._index.exists():
                return True
            if not all(self._part(i).exists() for i in range(self.num_parts)):
                return False
            return self._join_parts()

    def _join_parts(self) -> bool:
        """Writes the stream and its index. Removes a damaged part and returns False."""
        sizes = []
        for name in _FILES:
            if (self.folder / name).is_dir():  # a file cannot replace it
                remove(self.folder / name)
        with atomic_writer(self.folder / "tokens.bin") as file:
            file.write(np.array([self.first], np.int32))
            for number in range(self.num_parts):
                part = read_cached(self._part(number), _read_part)
                if part is None:
                    return False
                file.write(part.tokens)
                sizes.append(part.sizes)
        with atomic_writer(self.folder / "sizes.npy") as file:
            np.save(file, np.concatenate(sizes))
        digests = {name: _digest(self.folder / name) for name in _FILES[:-1]}
        write_atomic(self._index, json.dumps({"format": FORMAT, "sha256": digests}) + "\n")
        remove(self._parts_folder)
        return True


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Locks a file; yields False if another process holds the lock or the folder is gone."""
    if path.is_symlink() or path.is_dir():  # not made by this program
        remove(path)
    try:
        file = open_locked(path, wait=wait)
    except (BlockingIOError, FileNotFoundError):  # joining the parts removes their folder
        yield False
        return
    with file:
        yield True


class _Part(NamedTuple):
    """Tokens of a range of documents with their separators, int32 [n], and the documents' sizes."""

    tokens: np.ndarray
    sizes: np.ndarray


def _read_part(path: Path) -> _Part:
    with open_regular(path) as file, np.load(file) as archive:
        part = _Part(archive["tokens"], archive["sizes"])
    if part.tokens.dtype != np.int32 or part.sizes.dtype != np.int64:
        raise ValueError("its arrays have other types")
    return part


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tokenize_pairs(
    examples: Corpus, tokenizers: Tokenizers, options: TokenCacheOptions
) -> Sequence[Features]:
    """Tokens of both sides of each pair, {"source": int32 [n], "target": int32 [m]}, without
    special tokens.

    Large sets are encoded now, and cached. Small sets, or all without a cache, are encoded when
    their items are requested.

    Args:
      examples: pairs {"source": str, "target": str}.

    Raises:
      UserError: a folder that the user configured has no room for the tokens.
    """
    if isinstance(examples, Corpora) and examples.weights:
        return examples.map_parts(lambda part: tokenize_pairs(part, tokenizers, options))
    streams = {}
    for side in _SIDES:
        cache = options.open(tokenizers.sha256.get(side))
        stream = _cached_side(examples, side, tokenizers, cache) if cache else None
        if stream is None:
            return Parsed(examples, functools.partial(_encode_pair, tokenizers))
        streams[side] = stream
    return _CachedPairs(streams)


def _cached_side(
    examples: Corpus, side: str, tokenizers: Tokenizers, cache: TokenCache
) -> TokenStream | None:
    """One side as a stream of documents; None if it is too short to be cached."""
    tokenizer = tokenizers.text(side)
    texts = Parsed(examples, functools.partial(_side_example, side))
    return cache.read_or_encode(texts, tokenizer, first=tokenizer.specials.eos)


def _side_example(side: str, pair: Example) -> Example:
    return {"text": pair[side]}


def _encode_pair(tokenizers: Tokenizers, pair: Example) -> Features:
    return {side: np.array(tokenizers.text(side).encode(pair[side]), np.int32) for side in _SIDES}


@dataclass(frozen=True, repr=False)
class _CachedPairs(RandomAccess[Features]):
    """Document i of one stream with document i of the other.

    Attributes:
      sides: the streams; equally many documents.
    """

    sides: Mapping[str, TokenStream]

    def __len__(self) -> int:
        return len(self.sides["source"].starts)

    def item(self, index: int) -> Features:
        return {side: stream.document(index) for side, stream in self.sides.items()}

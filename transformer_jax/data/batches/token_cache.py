"""Text as tokens on disk: encoded once, for all runs and processes that read it.

    FOLDER/KEY/index.json    what is there, with digests; written last
    FOLDER/KEY/tokens.bin    the stream, int32
    FOLDER/KEY/sizes.npy     tokens of each document, int64
    FOLDER/KEY/parts/        while it is made: stretches of documents, each encoded by one process

The key is a digest of the text, of the tokenizer and of the code that encodes, so what is found is
what would be made. Processes that want the same text at once share the work; what one has encoded
before it was killed is not encoded again.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import inspect
import json
import logging
import multiprocessing
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from transformer_jax import conversations, data, tokenization, trees
from transformer_jax.buckets.bucket import Bucket, is_address
from transformer_jax.data.batches.text_digest import ENCODED, text_digest
from transformer_jax.data.batches.windows import TokenStream, laid_out, separator
from transformer_jax.data.batches.workers import begin
from transformer_jax.data.examples import Corpora, Corpus, Example, Features, Parsed, RandomAccess
from transformer_jax.errors import UserError
from transformer_jax.runtime.files import (
    SETTINGS_BYTES,
    atomic_writer,
    cache_folder,
    open_locked,
    open_regular,
    read_regular,
    remove,
    write_atomic,
)
from transformer_jax.runtime.processes import Lifeline
from transformer_jax.runtime.shared_arrays import SharedFile, SharedObject
from transformer_jax.tokenization import Tokenizer, Tokenizers

# FOLDED data.batches.other_processes: Other processes that do some of the work of this one.


@contextlib.contextmanager
def helped(work: Callable[[], object], count: int) -> Iterator[None]:
    """Calls `work` in `count` other processes while the block runs. They end with the block; a
    process that dies is not replaced.

    Args:
      work: stored once for all of them, with its arrays.
      count: of the processes; 0: none.
    """
    if not count:
        yield
        return
    file, lifeline = SharedFile.on_disk(), Lifeline()
    given = (lifeline, file, file.dump(work))
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of JAX's threads
    processes = [context.Process(target=_help, args=given, daemon=True) for _ in range(count)]
    try:
        for process in processes:
            process.start()
        yield
    finally:
        lifeline.cut()
        for process in processes:
            if process.pid is not None:
                process.join()


def _help(lifeline: Lifeline, file: SharedFile, stored: SharedObject) -> None:
    begin(lifeline)
    file.load(stored)()


# FOLDED data.batches.token_keys: What tokens are kept under: a digest of all that they depend on.


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


logger = logging.getLogger(__name__)

_STREAM = ("tokens.bin", "sizes.npy", "index.json")
_PART_BYTES = 2**22
_MOST_PARTS = 1024
_WORTH_KEEPING = 2**22
"""Bytes of text; a shorter one is encoded in a second or two."""
_PARTS_OF_A_HELPER = 8
"""Fewer are encoded by the time that another process has started."""
_BAR_AFTER_SECONDS = 2


@dataclass(frozen=True)
class TokenCache:
    """Keeps the tokens of text.

    Attributes:
      folder: where; made if absent. All processes of a job may share it, or each machine have one.
      identity: what the tokenizer has learned, as a digest.
      chosen: whether the user named the folder; one that nobody did may go unused.
      shared: where they are kept, too, for other machines.
      num_workers: processes that encode beside this one, of long text.
    """

    folder: Path
    identity: str
    chosen: bool
    shared: Bucket | None = None
    num_workers: int = 0

    def stream(self, documents: Corpus, tokenizer: Tokenizer, first: int) -> TokenStream | None:
        """Documents {"text": str} as `windows.token_stream` lays them out; None where their text is
        too short to be worth keeping.

        Raises:
          UserError: the text is empty; there is no room in a folder that the user named, or it
            cannot be written; or the bucket cannot be used.
        """
        spread = np.linspace(0, len(documents) - 1, min(len(documents), 100)).astype(int)
        sampled = sum(len(documents[i]["text"].encode(*ENCODED)) for i in spread.tolist())
        size = sampled * len(documents) / max(1, len(spread))
        if size < _WORTH_KEEPING:
            return None
        parts = int(min(size // _PART_BYTES, _MOST_PARTS, len(documents)))
        key = token_key(self.identity, documents, tokenizer, first)
        try:
            kept = _CachedStream(self.folder / key, documents, tokenizer, first, parts)
            return kept.read() or self._brought(kept) or self._made(kept)
        except OSError as error:
            problem = f"cannot keep tokens in {self.folder}: {error.strerror or error}"
        if self.chosen:
            raise UserError(
                f"{problem}; set data.cache_dir to a folder with room for 4 bytes a token, or to "
                "none"
            )
        logger.warning("%s; they are made anew at each start", problem)
        return None

    def _brought(self, kept: "_CachedStream") -> TokenStream | None:
        """The stream as another machine has left it in the bucket; None where it is not there."""
        names = [f"{kept.folder.name}/{name}" for name in _STREAM]
        if self.shared is None or names[-1] not in self.shared.entries(kept.folder.name):
            return None
        for name in names:
            self.shared.download(name, self.folder / name)
        return kept.read()

    def _made(self, kept: "_CachedStream") -> TokenStream:
        helpers = min(self.num_workers, kept.parts // _PARTS_OF_A_HELPER)
        found = kept.made(helpers)
        if self.shared is not None:
            for name in _STREAM:
                self.shared.upload(kept.folder / name, f"{kept.folder.name}/{name}")
        return found


@dataclass(frozen=True)
class _CachedStream:
    """One stream, in a folder of its own."""

    folder: Path
    documents: Corpus
    tokenizer: Tokenizer
    first: int
    parts: int

    def made(self, helpers: int) -> TokenStream:
        """The stream, encoded by this process, its helpers, and those that want it, too."""
        self._parts.mkdir(mode=0o700, parents=True, exist_ok=True)
        with helped(self.encode_missing, helpers):
            while not self._whole():
                self.encode_missing()
        found = self.read()
        if found is None:
            raise OSError(f"what was written to {self.folder} is not what is read")
        return found

    @property
    def _parts(self) -> Path:
        return self.folder / "parts"

    @property
    def _index(self) -> Path:
        return self.folder / _STREAM[-1]

    @property
    def _between(self) -> np.ndarray:
        return separator(self.first, self.tokenizer.specials.eos)

    def _part(self, number: int) -> Path:
        return self._parts / f"{number:05}.npz"

    def read(self) -> TokenStream | None:
        """The stream, if it is there and whole; one that is damaged is removed."""
        try:
            index = json.loads(read_regular(self._index, SETTINGS_BYTES))
        except FileNotFoundError:
            return None
        files = {name: self.folder / name for name in _STREAM[:-1]}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if all(_digest(path) == index["sha256"][name] for name, path in files.items()):
                logger.info("tokens of %d documents from %s", len(self.documents), self.folder)
                tokens = np.asarray(np.memmap(files["tokens.bin"], np.int32, "r"))
                return laid_out(tokens, np.load(files["sizes.npy"]), len(self._between))
        logger.warning("%s is damaged, and made again", self.folder)
        with _locked(self.folder.with_suffix(".lock"), wait=True):
            self._index.unlink(missing_ok=True)
        return None

    def encode_missing(self) -> None:
        """Encodes what no process has yet, and none is at."""
        missing = [i for i in range(self.parts) if not self._part(i).exists()]
        own, bar = 0, tqdm(missing, "tokens", unit="part", delay=_BAR_AFTER_SECONDS, disable=None)
        for number in bar:
            with _locked(self._part(number).with_suffix(".lock")) as mine:
                if mine and not self._part(number).exists() and not self._index.exists():
                    self._encode(number)
                    own += 1
        if missing and not own:
            time.sleep(0.2)  # others are at them

    def _encode(self, number: int) -> None:
        count = len(self.documents)
        first, last = (count * i // self.parts for i in (number, number + 1))
        texts = (self.documents[i]["text"] for i in range(first, last))
        encoded = [np.asarray(self.tokenizer.encode(text), np.int32) for text in texts]
        laid = [piece for tokens in encoded for piece in (tokens, self._between)]
        with atomic_writer(self._part(number)) as file:
            np.savez(file, tokens=np.concatenate(laid), sizes=np.array([len(x) for x in encoded]))

    def _whole(self) -> bool:
        """Whether all is there, put together from the parts if these are."""
        with _locked(self.folder.with_suffix(".lock"), wait=True):
            if self._index.exists():
                return True
            if not all(self._part(i).exists() for i in range(self.parts)):
                return False
            return self._put_together()

    def _put_together(self) -> bool:
        sizes = []
        with atomic_writer(self.folder / "tokens.bin") as file:
            file.write(np.array([self.first], np.int32))
            for number in range(self.parts):
                try:
                    with np.load(self._part(number)) as part:
                        file.write(part["tokens"])
                        sizes.append(part["sizes"])
                except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
                    logger.warning("%s is damaged (%s): encoded again", self._part(number), error)
                    self._part(number).unlink(missing_ok=True)
                    return False
        with atomic_writer(self.folder / "sizes.npy") as file:
            np.save(file, np.concatenate(sizes))
        digests = {name: _digest(self.folder / name) for name in _STREAM[:-1]}
        write_atomic(self._index, json.dumps({"format": FORMAT, "sha256": digests}) + "\n")
        remove(self._parts)
        return True


@contextlib.contextmanager
def _locked(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Locks a file; yields False if another process holds the lock or the folder is gone."""
    try:
        file = open_locked(path, wait=wait)
    except (BlockingIOError, FileNotFoundError):  # the folder goes when the parts are put together
        yield False
        return
    with file:
        yield True


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# FOLDED data.batches.token_caching: Whether text is kept as tokens, and where.


@dataclass(frozen=True)
class TokenCaching:
    """What a config says of the tokens of text.

    Attributes:
      folder: where they are kept, as `data.cache_dir`; None: nowhere.
      num_workers: processes that encode beside this one, as `data.num_workers`.
    """

    folder: str | None = None
    num_workers: int = 0

    def cache(self, identity: str | None) -> TokenCache | None:
        """The cache for a tokenizer with this digest; None where it has none, or nothing is kept.

        Raises:
          UserError: the bucket cannot be reached.
        """
        if self.folder is None or identity is None:
            return None
        if self.folder != "auto" and not is_address(self.folder):
            folder = Path(self.folder).expanduser()
            return TokenCache(folder, identity, chosen=True, num_workers=self.num_workers)
        own = cache_folder("tokens")
        shared = None if self.folder == "auto" else Bucket(self.folder)
        if own is None:
            return None
        return TokenCache(own, identity, shared is not None, shared, self.num_workers)


# FOLDED data.batches.pairs_as_tokens: Pairs of texts as tokens: those of a large set are encoded
# once and kept.


_SIDES = ("source", "target")


def pairs_as_tokens(
    examples: Corpus, tokenizers: Tokenizers, caching: TokenCaching
) -> Sequence[Features]:
    """The tokens of both sides of each pair, {"source": int32 [n], "target": int32 [m]}, without
    special tokens. Those of a large set are encoded now, and kept; those of a small one, or where
    nothing is kept, whenever they are asked for.

    Args:
      examples: {"source": str, "target": str}.
      tokenizers: of these two sides.
      caching: whether tokens are kept.

    Raises:
      UserError: there is no room for the tokens in a folder that the user named.
    """
    if isinstance(examples, Corpora) and examples.weights:
        return examples.each(lambda part: pairs_as_tokens(part, tokenizers, caching))
    streams = {}
    for side in _SIDES:
        cache = caching.cache(tokenizers.sha256.get(side))
        stream = _kept(examples, side, tokenizers, cache) if cache else None
        if stream is None:
            return Parsed(examples, functools.partial(_encoded, tokenizers))
        streams[side] = stream
    return _KeptPairs(streams)


def _kept(
    examples: Corpus, side: str, tokenizers: Tokenizers, cache: TokenCache
) -> TokenStream | None:
    """One side as documents, with an end behind each; None where it is not worth keeping."""
    tokenizer = tokenizers.text(side)
    texts = Parsed(examples, functools.partial(_text_of, side))
    return cache.stream(texts, tokenizer, first=tokenizer.specials.eos)


def _text_of(side: str, pair: Example) -> Example:
    return {"text": pair[side]}


def _encoded(tokenizers: Tokenizers, pair: Example) -> Features:
    return {side: np.array(tokenizers.text(side).encode(pair[side]), np.int32) for side in _SIDES}


@dataclass(frozen=True, repr=False)
class _KeptPairs(RandomAccess[Features]):
    """Document i of one stream beside document i of the other.

    Attributes:
      sides: the streams; equally many documents.
    """

    sides: Mapping[str, TokenStream]

    def __len__(self) -> int:
        return len(self.sides["source"].starts)

    def item(self, index: int) -> Features:
        return {side: stream.document(index) for side, stream in self.sides.items()}

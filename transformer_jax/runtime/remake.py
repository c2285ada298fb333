# SPDX-License-Identifier: Apache-2.0
"""Files whose content can be made again: caches of tokens, scores and measurements.

A file begins with the SHA-256 of a key and of the content after it. A file of another digest, and
anything else in its place, is made again without a word.
"""

import contextlib
import errno
import hashlib
import json
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from transformer_jax.runtime.files import atomic_writer, cache_folder, open_regular, remove

_HEADER_BYTES = 64  # hexadecimal digits; content of any dtype is aligned after them


def remake(path: Path, key: str, make: Callable[[BinaryIO], object]) -> memoryview:
    """Returns the content of a file, mapped into memory; makes the file unless it is there.

    Processes that make the same file at the same time write it one after the other.

    Args:
      key: what the content is made of; a file of another key is made again.
      make: writes the content to an open file.

    Raises:
      OSError: the file cannot be written.
    """
    content = read_made(path, key)
    if content is not None:
        return content
    write_made(path, key, make)
    content = read_made(path, key)
    if content is None:
        raise OSError(errno.EIO, "what was written is not what is read", str(path))
    return content


def kept_json(name: str, key: str, make: Callable[[], Any]) -> Any:
    """Returns what `make` returns, kept as JSON in the file `name` of the user's cache folder until
    the key changes; made again by each process where nothing can be kept."""
    path = cache_folder(name)
    with contextlib.suppress(OSError):
        if path is not None:
            return json.loads(
                bytes(remake(path, key, lambda file: file.write(json.dumps(make()).encode())))
            )
    return make()


def read_made(path: Path, key: str) -> memoryview | None:
    """Returns the content of a file, mapped into memory; None if it has to be made.

    An array of it can be made by `np.frombuffer`.
    """
    try:
        with open_regular(path) as file:
            header = file.read(_HEADER_BYTES)
            if header != _digest(key, file):
                return None
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return None
    return memoryview(mapped)[_HEADER_BYTES:]


def write_made(path: Path, key: str, make: Callable[[BinaryIO], object]) -> None:
    """Writes a file that `read_made` reads; arguments and errors as of `remake`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        remove(path)  # a file replaces a file or a link, but no folder
    with atomic_writer(path) as file:
        file.write(bytes(_HEADER_BYTES))
        make(file)
        file.flush()
        with open_regular(Path(os.fsdecode(file.name))) as written:
            written.seek(_HEADER_BYTES)
            header = _digest(key, written)
        file.seek(0)
        file.write(header)


def _digest(key: str, file: BinaryIO) -> bytes:
    """SHA-256 of the key and of the rest of a file: 100 ms for 200 MB."""
    digest = hashlib.sha256(key.encode())
    digest.update(b"\0")
    return hashlib.file_digest(file, lambda: digest).hexdigest().encode()  # type: ignore[arg-type]

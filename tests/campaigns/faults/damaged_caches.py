# SPDX-License-Identifier: Apache-2.0
"""Damages every cache that the program reads, and checks that results stay the same.

    python -m tests.campaigns.faults.damaged_caches --folder=/tmp/caches --flips=1000

Caches: tokens (as all files of `runtime.remake`), the index of files fetched from a bucket, and
compiled programs. Each is written once. Then each of its
files is once empty, cut, all zeros, deeply nested JSON, not UTF-8, a folder, a link to another file
and a link to nothing, and `--flips` times a bit of one of its files is flipped. After each damage
the cache is read as the program reads it, in this process. Then processes that write tokens again
and again are killed, `--kills` times, and what they leave is read.

Prints for each cache the number of cases and of those that raised an exception ("tracebacks"), gave
another result ("lost"), or changed what a link leads to ("followed"); exit status 1 if there are
any.
"""

import argparse
import collections
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from transformer_jax.buckets import copies
from transformer_jax.data.batches import token_cache
from transformer_jax.data.batches.token_cache import TokenCache
from transformer_jax.tokenization.specials import DEFAULT_SPECIALS

PRECIOUS = "a file outside of the cache"
TEXTS = [{"text": f"document {i} " * (i % 7 + 1)} for i in range(60)]


class Bytes:
    """Tokenizer of bytes."""

    specials = DEFAULT_SPECIALS

    def encode(self, text: str) -> list[int]:
        return [10 + byte for byte in text.encode()]


def tokens(folder: Path) -> Any:
    """Tokens of the cache, made if they are not there."""
    cache = TokenCache(str(folder))
    found = cache.read_or_encode(TEXTS, Bytes(), "a digest", DEFAULT_SPECIALS.eos)
    assert found is not None
    return found.tokens.tolist(), found.starts.tolist()


def fetched(folder: Path) -> Any:
    """Files fetched from a bucket; its index is damaged, not what was fetched."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    found = copies.fetch_folder("memory://bucket/data")
    return {path.name: path.read_text() for path in found.iterdir()}


def compiled(folder: Path) -> Any:
    """Output of a program that JAX reads from its cache."""
    for name, value in (
        ("jax_compilation_cache_dir", str(folder)),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        jax.config.update(name, value)
    jax.clear_caches()
    compilation_cache.reset_cache()
    x = jnp.arange(16.0)
    return jax.jit(lambda x: jnp.tanh(x @ x) * jnp.sin(x))(x).tolist()


CACHES: dict[str, Callable[[Path], Any]] = {
    "tokens": tokens,
    "index of fetched files": fetched,
    "compiled programs": compiled,
}

KILLED = ("tokens",)
NOT_CACHES = ("lock", "fetched.txt", "-atime")


def empty(path: Path, outside: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path, outside: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeros(path: Path, outside: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def deep(path: Path, outside: Path) -> None:
    path.write_bytes(b"[" * 10**5)


def not_utf8(path: Path, outside: Path) -> None:
    path.write_bytes(b'{"\xff\xfe": 1}')


def folder_instead(path: Path, outside: Path) -> None:
    path.unlink()
    (path / "below").mkdir(parents=True)


def link(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside)


def link_to_nothing(path: Path, outside: Path) -> None:
    path.unlink()
    path.symlink_to(outside.with_name("nothing"))


FORMS = (empty, cut, zeros, deep, not_utf8, folder_instead, link, link_to_nothing)


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cases(
    cache: Path, flips: int, forms: Sequence[Callable[[Path, Path], None]]
) -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    """Yields (file, form, damage) for the files of a cache."""
    draw, outside = random.Random(0), cache.parent / "outside"
    files = sorted(
        str(path.relative_to(cache))
        for path in cache.rglob("*")
        if path.is_file() and not path.name.endswith(NOT_CACHES) and path.stat().st_size
    )
    for name in files:
        for form in forms:
            yield name, form.__name__, lambda path, form=form: form(path, outside)  # type: ignore[misc]
    for number in range(flips):
        yield files[number % len(files)], "flip", lambda path: flip(path, draw)


def run(name: str, folder: Path, flips: int) -> collections.Counter[str]:
    """Damages one cache in all ways, and counts what happened."""
    use, counts = CACHES[name], collections.Counter[str](cases=0, tracebacks=0, lost=0, followed=0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outside, whole, cache = folder / "outside", folder / "whole", folder / "cache"
    outside.write_text(PRECIOUS)
    use(whole)
    use(cache)
    expected = use(whole)
    # JAX itself follows links in its cache, whose folder only the user can write to.
    forms = [form for form in FORMS if not (use is compiled and "link" in form.__name__)]
    for file, form, damage in cases(cache, flips, forms):
        shutil.rmtree(cache)
        shutil.copytree(whole, cache)
        damage(cache / file)
        counts["cases"] += 1
        try:
            if use(cache) != expected:
                counts["lost"] += 1
                print(f"{name}: {form} of {file}: another result", file=sys.stderr)
        except Exception:
            counts["tracebacks"] += 1
            print(f"{name}: {form} of {file}\n{traceback.format_exc()}", file=sys.stderr)
        if outside.read_text() != PRECIOUS or outside.with_name("nothing").exists():
            counts["followed"] += 1
            outside.write_text(PRECIOUS)
            outside.with_name("nothing").unlink(missing_ok=True)
    return counts


def _write_forever(use: Callable[[Path], Any], cache: Path) -> None:
    try:
        while True:
            shutil.rmtree(cache, ignore_errors=True)
            use(cache)
    finally:
        os._exit(1)


def kill(name: str, folder: Path, kills: int) -> collections.Counter[str]:
    """Kills processes that write a cache, and counts what happened."""
    use, counts, draw = CACHES[name], collections.Counter[str](kills=0, lost=0), random.Random(1)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cache, expected = folder / "cache", use(folder / "whole")
    for _ in range(kills):
        child = os.fork()
        if not child:
            _write_forever(use, cache)
        time.sleep(draw.uniform(0.02, 0.2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        counts["kills"] += 1
        for _ in range(2):  # what is left, and what is made of it
            counts["lost"] += use(cache) != expected
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--folder", type=Path, required=True, help="new; for the caches")
    parser.add_argument("--flips", type=int, default=1000, help="of bits, for each cache")
    parser.add_argument("--kills", type=int, default=20, help="of processes, for each cache")
    parser.add_argument("--caches", default=",".join(CACHES), help="which of them")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ["TRANSFORMER_JAX_ALLOW_ADDRESSES"] = "memory"
    fsspec.filesystem("memory").pipe_file("/bucket/data/fetched.txt", b"text")
    token_cache._MIN_BYTES, token_cache._PART_BYTES = 100, 2000
    found = {name: run(name, args.folder, args.flips) for name in args.caches.split(",")}
    killed = {name: kill(name, args.folder, args.kills) for name in KILLED if name in found}
    print(json.dumps({"damaged": found, "killed": killed}))
    wrong = ("tracebacks", "lost", "followed")
    return int(any(one[key] for key in wrong for one in (*found.values(), *killed.values())))


if __name__ == "__main__":
    sys.exit(main())

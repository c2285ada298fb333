# SPDX-License-Identifier: Apache-2.0
"""Tests names and addresses of others: none is written, deleted or contacted that should not be.

    python tests/campaigns/faults/foreign_names.py --cases=500

Each case draws names or an address, which most often try to leave a folder, and gives them to one
reader (see `READERS`): the listing of a bucket, the index of a copy, the manifest of a checkpoint,
the index of weights, rows of a sweep, and configs of loaded runs. The reader must succeed or raise
one line; a file outside of its folder must not change, and only s3:// and gs:// may be opened. A
case is determined by its number: `--first=N --cases=1` repeats one. Prints one JSON object; exit
status 1 if anything was wrong.
"""

import argparse
import collections
import contextlib
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
from fsspec.spec import AbstractFileSystem

import transformer_jax as tj
from transformer_jax.buckets import copies
from transformer_jax.checkpoints import manifest
from transformer_jax.interop.weights import INDEX, Tensors
from transformer_jax.lab.sweeps.definition import Sweep
from transformer_jax.lab.sweeps.shared_folder import folder_name
from transformer_jax.runs.config import load_json
from transformer_jax.runs.frozen import open_frozen
from transformer_jax.runs.workdir import workdir_within

PARTS = ["a", "b.txt", "..", ".", "", "~", "C:", "link", "\0", "\n", " ", "..\\x", "a\\..\\..\\b"]
PARTS += ["\u2024\u2024", "\uff0f", "%2e%2e", "con", "-rf", "\u202e", "\x1b[2J", "ü", "n" * 300]
PROTOCOLS = ["http", "https", "file", "local", "ftp", "zip", "github", "memory", "reference", "S3"]
CONFIG = Path(__file__).parents[3] / "configs" / "quickstart.py"
OWN = "outside"
"""What all files beside the readers' folders contain."""


class Keys(AbstractFileSystem):
    """An object store with any keys, which `fsspec` reaches as odd://."""

    protocol = "odd"
    keys: dict[str, bytes] = {}
    cachable = False

    def find(self, path: str, *_: object, **__: object) -> dict[str, dict[str, Any]]:
        """Lists the keys below a path."""
        found = {f"{path}/{key}": content for key, content in self.keys.items()}
        return {key: {"size": len(content), "ETag": key} for key, content in found.items()}

    def get_file(self, path: str, target: str, **_: object) -> None:
        """Writes the content of a key to disk."""
        Path(target).write_bytes(b"foreign")


fsspec.register_implementation("odd", Keys, clobber=True)


def draw_name(draw: random.Random, folder: Path) -> str:
    """A name, most often one that leads out of a folder."""
    outside = str(folder.parent / OWN / "file")
    up = "../" * draw.randint(1, 5)
    forms = [outside, "/" + outside, "x/" + outside, up + f"{OWN}/file", f"link/{OWN}", "link/file"]
    drawn = draw.choice(["/", "//", "\\"]).join(draw.choices(PARTS, k=draw.randint(1, 5)))
    return draw.choice([*forms, drawn, drawn, drawn, up + drawn])


def draw_address(draw: random.Random, folder: Path) -> str:
    """An address that a loaded config must not make the program open."""
    protocol, where = draw.choice(PROTOCOLS), draw.choice(["127.0.0.1:9/x", f"{folder}", "h/b@c"])
    forms = [f"{protocol}://{where}", f"zip://x::{protocol}://{where}", f"s3://b/x::{protocol}://"]
    forms += [f"{protocol}:/{where}", f" {protocol}://{where}", f"s3://{where}", f"//{where}"]
    return draw.choice(forms)


def read_bucket(folder: Path, draw: random.Random) -> None:
    """Fetches a bucket whose keys are foreign, twice: the second listing lacks some of them."""
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder)):
        copy = copies._files(copies._home("fetched", "odd://bucket/run"))
        copy.mkdir(parents=True)
        (copy / "link").symlink_to(folder.parent / OWN)
        keys = {draw_name(draw, copy): b"x" for _ in range(5)}
        for kept in (keys, dict(list(keys.items())[:2])):
            with mock.patch.object(Keys, "keys", {"good": b"y", **kept}):
                copies.fetch_folder("odd://bucket/run")


def read_copys_index(folder: Path, draw: random.Random) -> None:
    """Fetches into a copy whose index lists foreign names, which the bucket lacks."""
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder)):
        home = copies._home("fetched", "odd://bucket/run")
        copies._files(home).mkdir(parents=True)
        (copies._files(home) / "link").symlink_to(folder.parent / OWN)
        names = [draw_name(draw, copies._files(home)) for _ in range(5)]
        (home / copies._INDEX).write_text(json.dumps(dict.fromkeys(names, "1")))
        with mock.patch.object(Keys, "keys", {"good": b"y"}):
            copies.fetch_folder("odd://bucket/run")


def read_manifest(folder: Path, draw: random.Random) -> None:
    """Verifies a checkpoint whose manifest lists a foreign name with the digest of its file."""
    (folder / "params").mkdir()
    (folder / "params" / "a").write_text(OWN)
    (folder / "link").symlink_to(folder.parent / OWN)
    manifest.write_manifest(folder)
    entries, name = manifest.read_entries(folder), draw_name(draw, folder)
    manifest.write_entries(folder, entries | {name: entries["params/a"]})
    if manifest.find_damage(folder) is None:
        raise AssertionError(f"a file outside is taken as a part of the checkpoint: {name!r}")


def read_weights(folder: Path, draw: random.Random) -> None:
    """Reads weights whose index names foreign files."""
    (folder / "link").symlink_to(folder.parent / OWN)
    names = {"weight": draw_name(draw, folder), "bias": draw_name(draw, folder)}
    (folder / INDEX).write_text(json.dumps({"weight_map": names}))
    Tensors(folder)
    raise AssertionError(f"read {names}")


def name_row(folder: Path, draw: random.Random) -> None:
    """Makes the folder of a sweep's row with a foreign name."""
    name = draw_name(draw, folder)
    Sweep(config=str(CONFIG), rows={name: {}}).configs({})
    row = workdir_within(folder, folder_name(name))
    row.mkdir()
    if row.parent != folder:
        raise AssertionError(f"the row {name!r} is written to {row}")


def read_config(folder: Path, draw: random.Random) -> None:
    """Looks for the run that a loaded config names as its base."""
    base = draw.choice([draw_address, draw_name])(draw, folder)
    (folder / "run").mkdir()
    config = json.loads(tj.config(CONFIG, {"lora.rank": 2}).to_json())
    config["train"]["init_from"] = base
    (folder / "run" / "config.json").write_text(json.dumps(config))
    settings = load_json(folder / "run" / "config.json")
    with mock.patch("transformer_jax.runs.frozen.workdir_path", _refuse_to_open):
        open_frozen(settings)


def _refuse_to_open(path: str) -> Path:
    if "://" in path:
        raise AssertionError(f"opens {path!r}")
    return Path(path)


def open_bucket(folder: Path, draw: random.Random) -> None:
    """Opens a foreign address as a bucket."""
    address = draw_address(draw, folder)
    with mock.patch.object(fsspec.core, "url_to_fs", side_effect=_Opened(address)):
        try:
            if copies.is_address(address):
                copies.Bucket(address)
        except _Opened as error:
            if not address.startswith(("s3://", "gs://")) or "::" in address:
                raise AssertionError(f"opens {address!r}") from error
        except tj.UserError as error:
            if not isinstance(error.__cause__, _Opened) or address.startswith(("s3://", "gs://")):
                raise
            raise AssertionError(f"opens {address!r}") from error


class _Opened(Exception):
    """Stands for a connection."""


READERS: list[Callable[[Path, random.Random], None]] = [
    read_bucket,
    read_copys_index,
    read_manifest,
    read_weights,
    name_row,
    read_config,
    open_bucket,
]


def judge(number: int) -> tuple[str, str]:
    """Runs a case; returns the reader's name and how it ended."""
    draw = random.Random(number)
    reader = draw.choice(READERS)
    with _folder() as folder:
        before = _contents(folder.parent)
        try:
            reader(folder, draw)
            ended = "read"
        except tj.UserError as error:
            ended = "refused" if str(error).isprintable() else f"unprintable: {error!r}"
        except Exception as error:
            ended = f"traceback: {error!r}"
        if _contents(folder.parent) != before:
            ended = "changed what is outside"
    return reader.__name__, ended


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for a reader, beside files of the user."""
    root = Path(tempfile.mkdtemp())
    try:
        (root / OWN).mkdir()
        (root / OWN / "file").write_text(OWN)
        (root / "folder").mkdir()
        yield root / "folder"
    finally:
        shutil.rmtree(root)


def _contents(root: Path) -> dict[str, str]:
    """The files beside the reader's folder."""
    beside = [path for path in root.iterdir() if path.name != "folder"]
    files = [file for path in beside for file in (path, *path.rglob("*")) if file.is_file()]
    return {str(file): file.read_text() for file in files} | {str(path): "" for path in beside}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first case: its seed")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    counts: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    wrong = []
    with mock.patch.dict(os.environ, TRANSFORMER_JAX_ALLOW_ADDRESSES="odd"):
        for number in range(args.first, args.first + args.cases):
            reader, ended = judge(number)
            counts[reader][ended.partition(":")[0]] += 1
            if ended not in ("read", "refused"):
                wrong.append(f"{number}: {reader}, {ended}")
    print(json.dumps({"cases": args.cases, "ended": counts, "wrong": wrong}))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Random damage to a workdir, one kind per function.

Each function takes the workdir, a folder `outside` of it, whose files must not change, and a random
generator; it returns a short description. With `mend`, checksums of tokenizers and checkpoints are
made to fit, as an attacker would do.
"""

import copy
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.step_folder import step_folders

NASTY = [b"", b"\0", b"[", b"-1", b"1e999", b"null", b'{"a": 1}', b"../../x"]
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 7, 2**31, 2**63, 10**30, 1.5, -1e300, float("nan"), float("inf")),
    *("", "x", "../../outside/it", "/dev/zero", "\0", "\ud800", "a\nb", "\u0663"),
    *([], {}, [[]], [1], {"a": {"b": {}}}),
]
Damage = Callable[[Path, Path, random.Random], str]


def files(run: Path) -> list[Path]:
    """All files of a run that are read."""
    return evenly(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())


def places(run: Path) -> list[Path]:
    """Files, folders and names that a run writes."""
    newest = max(step_folders(run / "checkpoints"), default=0)
    written = [
        *("predictions", f"predictions/test-{newest}.jsonl", "config.json.partial", "profile"),
        *("metrics.jsonl.partial", "modules.json", "tokenizer.partial", "together", "wandb"),
        *(f"checkpoints/{newest + 1}", f"checkpoints/{newest + 1}.orbax-checkpoint-tmp"),
        *(f"predictions/valid-{newest + 1}.jsonl", f"predictions/train.source-{newest}.jsonl"),
    ]
    return evenly({*run.rglob("*"), *(run / name for name in written)})


def evenly(paths: Iterable[Path]) -> list[Path]:
    """Paths in a fixed order. Those outside of `checkpoints/`, which are few, are repeated so that
    they are drawn equally often."""
    found = sorted(paths)
    others = [path for path in found if "checkpoints" not in path.parts]
    return found + others * (len(found) // max(len(others), 1))


def linked(run: Path, outside: Path, draw: random.Random) -> str:
    """Replaces an existing or future file or folder by a link."""
    path = draw.choice(places(run))
    kind = draw.choice(["moved", "file", "folder", "dangling", "itself", "inside"])
    target = {"file": outside / "it", "folder": outside}.get(kind)
    target = target or outside / "moved" if kind != "itself" else path
    if kind == "inside":
        target = draw.choice(places(run))
    if kind == "moved" and path.exists():
        shutil.move(path, target)
    clear(path)
    path.symlink_to(os.path.relpath(target, path.parent) if draw.random() < 0.3 else target)
    return f"{path.relative_to(run)} is a link ({kind})"


def no_file(run: Path, outside: Path, draw: random.Random) -> str:
    """Replaces any file by a pipe or a folder."""
    path = draw.choice(places(run))
    make = draw.choice([os.mkfifo, os.mkdir])
    clear(path)
    make(path)
    return f"{path.relative_to(run)} is of {make.__name__}"


def mutated_file(run: Path, outside: Path, draw: random.Random) -> str:
    """Changes bytes of any file; may mend checksums."""
    path = draw.choice(files(run))
    path.write_bytes(mutated(path.read_bytes(), draw))
    return f"{path.relative_to(run)} mutated{mend(run, path, draw)}"


def mutated_json(run: Path, outside: Path, draw: random.Random) -> str:
    """Changes a value of a JSON file; may mend checksums."""
    paths = [path for path in files(run) if parsed(path) is not None]
    path = draw.choice(paths)
    content = parsed(path)
    where = change(content, draw)
    path.write_text(json.dumps(content))
    return f"{path.relative_to(run)}: {where}{mend(run, path, draw)}"


def leaving_names(run: Path, outside: Path, draw: random.Random) -> str:
    """Makes a name in a file point out of the workdir."""
    away = ["../../../outside/it", "/dev/zero", str(outside / "it"), "d/../../../../config.json"]
    name = draw.choice(away)
    step = draw.choice(sorted(step_folders(run / "checkpoints").values()))
    kind = draw.randrange(3)
    tokenizer, arrays = run / "tokenizer" / "sides.json", step / "params" / "_METADATA"
    path = (step / manifest.MANIFEST, tokenizer, arrays)[kind]
    entries = json.loads(path.read_bytes())
    if kind == 0:
        item = draw.choice(["", "params/"])
        entries[item + name] = next(iter(entries.values()))
    elif kind == 1:
        draw.choice(list(entries.values()))["file"] = name
    else:
        tree = json.dumps(entries["tree_metadata"])
        old = draw.choice(list(entries["tree_metadata"])).strip("(),'")
        entries["tree_metadata"] = json.loads(tree.replace(old, name))
        entries["use_ocdbt"] = draw.random() < 0.5
    path.write_text(json.dumps(entries))
    return f"{path.relative_to(run)} names {name}{mend(run, path, draw)}"


def rights(run: Path, outside: Path, draw: random.Random) -> str:
    """Removes permissions."""
    path, mode = draw.choice(sorted(run.rglob("*"))), draw.choice([0, 0o200, 0o400, 0o500])
    path.chmod(mode)
    return f"{path.relative_to(run)} has mode {mode:o}"


def lost(run: Path, outside: Path, draw: random.Random) -> str:
    """Deletes a file or folder, or replaces it by another one."""
    path = draw.choice(sorted(run.rglob("*")))
    other = draw.choice(files(run))
    content = other.read_bytes()
    clear(path)
    what = "gone"
    if draw.random() < 0.5:
        path.write_bytes(content)
        what = other.relative_to(run)
    return f"{path.relative_to(run)} is {what}{mend(run, path, draw)}"


KINDS: list[tuple[Damage, int]] = [
    *((linked, 5), (no_file, 3), (mutated_file, 7), (mutated_json, 6), (leaving_names, 2)),
    *((rights, 1), (lost, 2)),
]
"""Kinds of damage with their relative frequencies."""


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Returns the data with random damage of one kind."""
    place = draw.randrange(len(data) + 1)
    length = draw.randrange(1, 64)
    match draw.randrange(6):
        case 0:  # one bit flipped
            place = min(place, max(len(data) - 1, 0))
            bit = bytes([data[place] ^ 1 << draw.randrange(8)]) if data else b""
            return data[:place] + bit + data[place + 1 :]
        case 1:  # random bytes
            return data[:place] + draw.randbytes(length) + data[place + length :]
        case 2:  # cut short
            return data[:place]
        case 3:  # bytes inserted
            return data[:place] + draw.choice(NASTY) + data[place:]
        case 4:  # everything replaced
            return draw.choice(NASTY)
        case _:  # a digit replaced, if there is one
            digits = [i for i, byte in enumerate(data) if 48 <= byte < 58]
            place = draw.choice(digits) if digits else place
            return data[:place] + draw.choice([b"-1", b"99999999999", b"1.5"]) + data[place + 1 :]


def parsed(path: Path) -> Any:
    """Content of a JSON file if it has a value to change, else None."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return None
    return content if isinstance(content, dict | list) and content else None


def change(content: Any, draw: random.Random) -> str:
    """Changes, removes or adds a value at a random place; returns where and how."""
    inner = content
    while True:
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        key = draw.choice(keys)
        if not (isinstance(inner[key], dict | list) and inner[key]) or draw.random() < 0.15:
            break
        inner = inner[key]
    value = copy.deepcopy(draw.choice(VALUES))
    match draw.randrange(4):
        case 0:
            del inner[key]
            return f"without {key!r:.60}"
        case 1 if isinstance(inner, dict):
            new = draw.choice([v for v in VALUES if isinstance(v, str)])
            inner[new] = inner.pop(key)
            return f"{key!r:.60} is called {new!r:.60}"
        case _:
            inner[key] = value
            return f"{key!r:.60} is {value!r:.60}"


def mend(run: Path, path: Path, draw: random.Random) -> str:
    """Mends the checksums of a file, in most cases."""
    if draw.random() < 0.3:
        return ""
    if path.parent.name == "tokenizer" and path.name != "sides.json":
        mend_tokenizers(run)
        return ", mended"
    for step in step_folders(run / "checkpoints").values():
        if path.is_relative_to(step) and path != step / manifest.MANIFEST and step.is_dir():
            (step / manifest.MANIFEST).unlink(missing_ok=True)
            manifest.write_manifest(step)
            return ", mended"
    return ""


def mend_tokenizers(run: Path) -> None:
    path = run / "tokenizer" / "sides.json"
    sides = json.loads(path.read_bytes())
    for entry in sides.values():
        file = path.parent / entry["file"]
        content = file.read_bytes() if file.is_file() else b""
        entry["sha256"] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(sides))


def clear(path: Path) -> None:
    """Deletes a path, to replace it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

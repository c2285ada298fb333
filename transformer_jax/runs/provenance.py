"""What a run rests on besides its config: its tokenizers, its training data and the code.

Each checkpoint keeps it, as {what: description}. Where a run goes on, or is used, other tokenizers
and other data are refused; other code is told. Checkpoints of versions that kept nothing are taken
as they are. No path is part of it: data and workdirs may move.
"""

import functools
import hashlib
import logging
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.checkpoints import manifest
from transformer_jax.checkpoints.store import Checkpoints, Which
from transformer_jax.data.examples import Corpus
from transformer_jax.errors import UserError
from transformer_jax.parallel import hosts
from transformer_jax.runs.user_modules import UserModule
from transformer_jax.tokenization import Tokenizers

logger = logging.getLogger(__name__)

Provenance = Mapping[str, str]
"""What a run rests on -> a description that differs where it does."""

_PACKAGE = "transformer_jax"
_CODE = "code"
_SAMPLED = 10_000  # examples at the beginning, and as many spread evenly over all
_MOST_CHARACTERS = 2**26
_DIGITS = 32  # of a SHA-256


def of_training(examples: Corpus) -> dict[str, str]:
    """The training data and the code."""
    return of_data("training data", examples) | {_CODE: code()}


def of_data(name: str, examples: Corpus) -> dict[str, str]:
    """Examples, whatever set or files they come from: how many there are, and a digest of the first
    ones and of others spread evenly over all, so that it takes a moment for any size."""
    count, digest, read = len(examples), hashlib.sha256(), 0
    spread = np.linspace(0, count - 1, min(count, _SAMPLED)).astype(int)
    for place in sorted({*range(min(count, _SAMPLED)), *spread.tolist()}):
        text = repr(examples[place]).encode()
        digest.update(text)
        read += len(text)
        if read > _MOST_CHARACTERS:
            break
    return {name: f"{count} examples, SHA-256 {digest.hexdigest()[:_DIGITS]}"}


def agreed_data(split: str, open_split: Callable[[], Corpus]) -> Corpus:
    """The examples of a split, once all processes of a job have the same ones.

    Raises:
      UserError: they differ, or cannot be opened in one; in all processes.
    """

    def opened() -> tuple[Corpus, Provenance]:
        examples = open_split()
        return examples, of_data(f"data of the split {split}", examples)

    return hosts.require_agreement(opened)[0]


def of_tokenizers(tokenizers: Tokenizers) -> dict[str, str]:
    """The vocabulary of each side."""
    return {
        f"tokenizer of {side}": f"SHA-256 {sha256[:_DIGITS]}"
        for side, sha256 in tokenizers.sha256.items()
    }


def of_checkpoints(folders: Mapping[int, Path]) -> str:
    """The newest of the checkpoints of a run, by its step and its manifest."""
    return manifest.described(folders[max(folders)]) if folders else "no checkpoint"


@functools.cache
def code() -> str:
    """The package's version, and a digest of its source."""
    digest, folder = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode() + path.read_bytes())
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:  # run from a checkout
        version = "not installed"
    return f"{_PACKAGE} {version}, SHA-256 {digest.hexdigest()[:_DIGITS]}"


def check(now: Provenance, kept: Provenance, workdir: Path) -> None:
    """Compares what a run is to go on with, or be used with, and what its checkpoint keeps.

    Raises:
      UserError: tokenizers or training data are not those of the run; the first is named.
    """
    for name, described in now.items():
        before = kept.get(name, described)
        if before == described:
            continue
        if name == _CODE:
            logger.info("%s was trained by other code: %s; here: %s", workdir, before, described)
            continue
        raise UserError(
            f"{workdir} was trained with another {name}: {before}; here: {described}; "
            "bring back what it was, or start anew in another --workdir"
        )


def check_tokenizers(
    tokenizers: Tokenizers, checkpoints: Checkpoints, which: Which, workdir: Path
) -> None:
    """As `check`, of the tokenizers alone, before the parameters of a checkpoint are used."""
    check(of_tokenizers(tokenizers), checkpoints.kept_provenance(which), workdir)


# FOLDED runs.statement: What a process states about a command before it joins the job: all
# processes must state the same. `FREE` and the paths of files may differ; of files whose content
# matters, the content is stated.


FREE = re.compile(r"data\.dir|logging\..*")
"""Fields of the config that may differ between the processes of a job."""

_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "grain", "orbax-checkpoint")
_OF_ONE_MACHINE = re.compile("cache|visible_devices|log|dump|mtls|cross_host|traceback|pprint")
"""Flags of JAX that say nothing about the compiled programs."""


def job_fingerprint(
    config: ConfigDict,
    modules: Iterable[UserModule],
    flags: Mapping[str, Any],
    files: Mapping[str, str | None],
) -> dict[str, str]:
    """The statement of one command.

    Args:
      config: of the run.
      modules: the user's own.
      flags: of the command line, by their names.
      files: likewise, of which the content counts; None where the flag is not given.

    Raises:
      UserError: a file cannot be read.
    """
    stated = {name: repr(value) for name, value in _fields(config).items()}
    stated = {name: text for name, text in stated.items() if not FREE.fullmatch(name)}
    stated |= {f"--{name}": repr(value) for name, value in flags.items()}
    stated |= {f"--{name}": _digest(path) for name, path in files.items() if path is not None}
    stated |= {f"module {one.name}": f"SHA-256 {one.sha256[:32]}" for one in modules}
    return stated | {"code": code()} | _libraries()


def _fields(config: ConfigDict) -> dict[str, Any]:
    """{"section.field": value}"""
    found: dict[str, Any] = {}
    for section, values in config.to_dict().items():
        if isinstance(values, Mapping):
            found |= {f"{section}.{field}": value for field, value in values.items()}
        else:
            found[section] = values
    return found


def _libraries() -> dict[str, str]:
    """Versions and flags of what computes."""
    found = {name: metadata.version(name) for name in _LIBRARIES}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    found["XLA_FLAGS"] = " ".join(
        sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if "dump" not in flag)
    )
    flags = jax.config.values.items()
    return found | {name: str(value) for name, value in flags if not _OF_ONE_MACHINE.search(name)}


def _digest(path: str) -> str:
    if Path(path).exists() and not Path(path).is_file():
        return "no regular file"  # a pipe, say, which can be read once
    try:
        with Path(path).open("rb") as file:
            return f"a file of SHA-256 {hashlib.file_digest(file, 'sha256').hexdigest()[:32]}"
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error

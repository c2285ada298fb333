# SPDX-License-Identifier: Apache-2.0
"""Provenance of a run: SHA-256 digests of its tokenizers and the data of its splits, and the
fingerprint of its training step.

Each checkpoint stores it, as {name: description}. A run that is resumed or used with other
tokenizers or other data is refused; other test data are logged, and so is whether the step, the
libraries and the machine are the same. Checkpoints of versions that stored nothing are accepted. It
contains no paths, since data and workdirs may move.

`job_fingerprint` describes a whole command in the same way: the processes of a job compare it
before they start together.
"""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints import manifest
from transformer_jax.data.examples import Corpus
from transformer_jax.errors import MissingSplitError, UserError
from transformer_jax.parallel import hosts
from transformer_jax.runs.outside import open_data
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import UserModule
from transformer_jax.runtime.platform import is_cpu, processor_lines, usable_cores
from transformer_jax.tokenization import Tokenizers

logger = logging.getLogger(__name__)

Provenance = Mapping[str, str]
"""{name of what a run is based on: a description that changes when it changes}"""

MAY_DIFFER = re.compile(r"data\.dir|logging\..*")
"""Config fields that may differ between the processes of a job."""

_PACKAGE = "transformer_jax"
TRAINING_DATA = "training data"
VALIDATION_DATA = "validation data"
TEST_DATA = "test data"
_DATA = {"train": TRAINING_DATA, "valid": VALIDATION_DATA, "test": TEST_DATA}
CODE = "code"
STEP = "step"
LIBRARIES = "libraries"
PYTHON = "python"
PROCESSOR = "processor"
CORES = "number of cores"
_SAMPLED = 10_000  # examples at the beginning, and as many spread evenly over all
_MOST_BYTES = 2**26
_DIGITS = 32  # of a SHA-256
_LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "grain", "orbax-checkpoint")
_FLAGS_OF_ONE_MACHINE = re.compile(
    "cache|visible_devices|log|dump|mtls|cross_host|traceback|pprint"
)
"""Flags of JAX that do not change the compiled programs."""


def run_provenance(splits: Mapping[str, Corpus]) -> dict[str, str]:
    """Describes the data of each split and the code."""
    data = {_DATA[split]: data_digest(examples) for split, examples in splits.items()}
    return data | {CODE: code_version()}


def machine_provenance() -> dict[str, str]:
    """Describes what decides on the bits of a program: libraries with flags, devices with the
    processor, and on CPUs the number of cores, among which XLA divides sums."""
    libraries = _libraries()
    versions = [f"{name} {libraries[name]}" for name in ("jax", "jaxlib")]
    devices = f"{jax.device_count()} {jax.devices()[0].device_kind}"
    models = [line.partition(": ")[2] for line in processor_lines() if line.startswith("model")]
    return {
        LIBRARIES: ", ".join([*versions, *libraries["XLA_FLAGS"].split()]),
        PYTHON: libraries["python"],
        PROCESSOR: ", ".join([devices, *models]),
        **({CORES: str(usable_cores())} if is_cpu() else {}),
    }


def data_digests(
    configs: Mapping[str, Settings], splits: Sequence[str] = ("train", "valid")
) -> dict[str, dict[str, str]]:
    """Describes the data of each of several configs, as `run_provenance` does; equal data are read
    once.

    Raises:
      UserError: the data are not here.
    """
    read: dict[str, dict[str, str]] = {}
    for settings in configs.values():
        if repr(settings.data) not in read:
            digests: dict[str, str] = {}
            for split in splits:
                with contextlib.suppress(MissingSplitError):
                    digests[_DATA[split]] = data_digest(open_data(settings, split))
            read[repr(settings.data)] = digests
    return {name: read[repr(settings.data)] for name, settings in configs.items()}


def data_digest(examples: Corpus) -> str:
    """Describes examples by their number and a SHA-256, whatever files they come from.

    The digest covers the first examples and others spread evenly over all, so that it takes a
    moment for data of any size.
    """
    digest = hashlib.sha256()
    count = len(examples)
    spread = np.linspace(0, count - 1, min(count, _SAMPLED)).astype(int)
    num_bytes = 0
    for index in sorted({*range(min(count, _SAMPLED)), *spread.tolist()}):
        text = repr(examples[index]).encode()
        digest.update(text)
        num_bytes += len(text)
        if num_bytes > _MOST_BYTES:
            break
    return f"{count} examples, SHA-256 {digest.hexdigest()[:_DIGITS]}"


def tokenizer_provenance(tokenizers: Tokenizers) -> dict[str, str]:
    """Describes the tokenizer of each side by its SHA-256."""
    return {
        f"tokenizer of {side}": f"SHA-256 {sha256[:_DIGITS]}"
        for side, sha256 in tokenizers.sha256.items()
    }


def newest_checkpoint(folders: Mapping[int, Path]) -> str:
    """Fingerprint of a run's newest checkpoint, or "no checkpoint"."""
    return manifest.checkpoint_id(folders[max(folders)]) if folders else "no checkpoint"


@functools.cache
def code_version() -> str:
    """The package's version and a SHA-256 of its source, without the shipped examples."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith("examples/"):  # in a checkout, links to other folders
            digest.update(f"{name}\n".encode() + path.read_bytes())
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:  # run from a checkout
        version = "not installed"
    return f"{_PACKAGE} {version}, SHA-256 {digest.hexdigest()[:_DIGITS]}"


def check_provenance(now: Provenance, saved: Provenance, workdir: Path) -> None:
    """Compares what a run is resumed or used with against the provenance in its checkpoint.

    Raises:
      UserError: tokenizers, training or validation data differ; the first difference is named.
    """
    for name, description in now.items():
        before = saved.get(name, description)
        # `compare_bits` says what other code means for a run that is resumed.
        if before == description or name == CODE:
            continue
        if name == TEST_DATA:
            _log_once(
                "%s was trained with other %s: %s; here: %s", workdir, name, before, description
            )
            continue
        raise UserError(
            f"{workdir} was trained with another {name}: {before}; here: {description}; "
            "restore what it was trained with, or start again in another --workdir"
        )


def compare_bits(now: Provenance, saved: Provenance) -> str:
    """Says whether a resumed run continues with the bits of an uninterrupted one.

    Args:
      now, saved: provenance with the fingerprint of the training step, here and of the checkpoint.
    """
    if STEP not in saved:
        return (
            "its checkpoint has no fingerprint of the step, so its bits may not be those of before"
        )
    differing = [
        f"{name} ({saved.get(name)}; here: {now.get(name)})"
        for name in (STEP, LIBRARIES, PROCESSOR, CORES)
        if saved.get(name) != now.get(name)
    ]
    if differing:
        return f"its bits may not be those of before: another {', another '.join(differing)}"
    code = "" if saved.get(CODE) == now.get(CODE) else ", though the code has changed"
    return f"its step computes what it did before, bit for bit{code}"


_log_once = functools.cache(logger.info)


def open_same_data(name: str, open_examples: Callable[[], Corpus]) -> tuple[Corpus, str]:
    """Opens the examples of a split, and describes them; all processes of a job must have the same
    ones.

    Raises:
      UserError: in all processes, if the examples differ or one process cannot open them.
    """

    def open_and_describe() -> tuple[tuple[Corpus, str], Provenance]:
        examples = open_examples()
        digest = data_digest(examples)
        return (examples, digest), {f"data of the split {name}": digest}

    return hosts.require_agreement(open_and_describe)


def job_fingerprint(
    settings: Settings,
    modules: Iterable[UserModule],
    flags: Mapping[str, Any],
    files: Mapping[str, str | None],
) -> dict[str, str]:
    """Describes a command: all processes of a job must have been started with the same one.

    The fields `MAY_DIFFER` and the paths of files are left out; the contents of files count.

    Args:
      flags: flags of the command line, by name.
      files: flags that name files whose contents count; None if a flag is not given.

    Raises:
      UserError: a file cannot be read.
    """
    fields = settings.values.items()
    command = {name: repr(value) for name, value in fields if not MAY_DIFFER.fullmatch(name)}
    command |= {f"--{name}": repr(value) for name, value in flags.items()}
    command |= {f"--{name}": _digest(path) for name, path in files.items() if path is not None}
    for module in modules:
        command[f"module {module.name}"] = f"SHA-256 {module.sha256[:_DIGITS]}"
    return command | {CODE: code_version()} | _libraries()


def _libraries() -> dict[str, str]:
    """Versions and flags of the numerical libraries."""
    libraries = {name: metadata.version(name) for name in _LIBRARIES}
    libraries["python"] = ".".join(platform.python_version_tuple()[:2])
    libraries["XLA_FLAGS"] = " ".join(
        sorted(flag for flag in os.environ.get("XLA_FLAGS", "").split() if "dump" not in flag)
    )
    for name, value in jax.config.values.items():
        if not _FLAGS_OF_ONE_MACHINE.search(name):
            libraries[name] = str(value)
    return libraries


def _digest(path: str) -> str:
    if Path(path).exists() and not Path(path).is_file():
        return "no regular file"  # a pipe, say, which can be read only once
    try:
        with Path(path).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    return f"a file of SHA-256 {digest[:_DIGITS]}"

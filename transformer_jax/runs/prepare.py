"""What is put into a workdir before its run trains, or goes on."""

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.files.text import TextBlocks
from transformer_jax.errors import UserError
from transformer_jax.logs.records import newest_step
from transformer_jax.runs import provenance
from transformer_jax.runs.build import task_kind
from transformer_jax.runs.config import (
    Settings,
    check_same_run,
    load_json,
    read_settings,
    save_json,
)
from transformer_jax.runs.user_modules import UserModule, record_modules
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    REFERENCE,
    TOKENIZER,
    workdir_path,
)
from transformer_jax.runtime.files import remove
from transformer_jax.tasks.interface import TaskKind
from transformer_jax.tokenization import (
    Symbols,
    Tokenizers,
    copy_tokenizers,
    load_tokenizers,
    train_tokenizers,
)

# FOLDED runs.vocabularies: The vocabularies of a run: learned from its training examples, or taken
# over from another run.


_SAMPLED_BYTES = 2**28
"""Of text in blocks, from which a tokenizer learns."""


def build_tokenizers(
    settings: Settings, directory: Path, examples: Sequence[dict[str, str]]
) -> Tokenizers:
    """The tokenizers in `directory`; where there are none, they are first trained on the examples,
    or copied from the run that this one starts from, and stored there."""
    if directory.exists():
        return load_tokenizers(directory)
    kind = task_kind(settings)
    _check_examples(settings, kind, examples[0])
    if isinstance(examples, TextBlocks):
        examples = examples.sample(_SAMPLED_BYTES)
    listed: dict[str, Iterable[str] | Symbols] = {
        side: itertools.chain.from_iterable(split(example[side]) for example in examples)
        for side, split in kind.labels.items()
    }
    for side, symbols_of in kind.symbols.items():
        parts = (example[side] for example in examples)
        listed[side] = Symbols(sorted(symbols_of(settings.task, parts)))
    if settings.train.init_from:
        source = workdir_path(settings.train.init_from) / TOKENIZER
        return copy_tokenizers(source, directory, listed, kind.texts)
    texts = {side: _texts(examples, parts) for side, parts in kind.texts.items()}
    return train_tokenizers(settings.tokenizer, texts, directory, listed)


def _check_examples(settings: Settings, kind: TaskKind, example: Mapping[str, str]) -> None:
    wanted = {parts[0] for parts in kind.texts.values()} | {*kind.labels, *kind.symbols}
    if not wanted <= set(example):
        raise UserError(
            f"task {settings.task.name} reads {' and '.join(sorted(wanted))}, but the examples of "
            f"{settings.data.name} have {' and '.join(sorted(example))}; choose another data.name"
        )


def _texts(examples: Sequence[Mapping[str, str]], parts: Sequence[str]) -> Iterator[str]:
    """The lines of these parts of all examples, with their line ends."""
    for example in examples:
        for part in parts:
            yield from io.StringIO(example.get(part, ""), newline="\n")


def prepare(
    config: ConfigDict,
    workdir: Path,
    checkpoints: Checkpoints,
    examples: Sequence[Any],
    modules: Sequence[UserModule],
) -> None:
    """Puts config, tokenizers and the names of the user's modules into the workdir.

    Args:
      config: of the run.
      workdir: which may hold an earlier start of it.
      checkpoints: of the workdir.
      examples: of the training split, from which tokenizers learn.
      modules: that were given for the run.

    Raises:
      UserError: the workdir holds another run, or one whose checkpoints or tokenizers are gone or
        that was trained on other data, or the tokenizers cannot be made.
    """
    kept, tokenizer = workdir / CONFIG, workdir / TOKENIZER
    settings = read_settings(config)
    if checkpoints.holds_params_alone():
        raise UserError(
            f"{workdir} holds a published model, without the state of a training; choose another "
            f"--workdir and start from it: --config.train.init_from={workdir}"
        )
    if checkpoints.latest_step() is not None:
        check_same_run(config, load_json(kept), workdir)
        now = checkpoints.provenance | provenance.of_tokenizers(load_tokenizers(tokenizer))
        provenance.check(now, checkpoints.kept_provenance("latest"), workdir)
    else:
        _require_nothing_lost(workdir, checkpoints.directory)
        # Nothing to go on from: what is there is of a start that failed, with any config.
        remove(tokenizer)
        remove(workdir / REFERENCE)
        checkpoints.directory.mkdir(exist_ok=True)
        if settings.train.init_from:
            _check_tokenizers_of_origin(workdir_path(settings.train.init_from), settings)
    build_tokenizers(settings, tokenizer, examples)
    save_json(config, kept)
    record_modules(workdir, config, modules)


def _check_tokenizers_of_origin(origin: Path, settings: Settings) -> None:
    """Raises UserError where the run to start from has not the tokenizers it was trained with."""
    tokenizers = load_tokenizers(origin / TOKENIZER)
    checkpoints = Checkpoints(origin / CHECKPOINTS, settings.checkpoint)
    provenance.check_tokenizers(tokenizers, checkpoints, "latest", origin)


def _require_nothing_lost(workdir: Path, checkpoints: Path) -> None:
    """Raises UserError where a run without any checkpoint must have had some.

    A start makes their folder before it writes the config; the second save waits for the first.
    """
    kept = workdir / CONFIG
    gone = not checkpoints.is_dir() and kept.exists()
    if not gone and kept.exists():
        twice = 2 * load_json(kept).checkpoint.every_steps
        gone = newest_step(workdir / METRICS) > twice
    if gone:
        raise UserError(
            f"{workdir} holds a run whose {checkpoints.name}/ is gone (a disk that is not "
            "mounted?); bring it back, or start anew in another --workdir"
        )

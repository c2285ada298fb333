# SPDX-License-Identifier: Apache-2.0
"""Opens what a training reads, and writes config, tokenizers and module names to its workdir."""

import contextlib
import dataclasses
import functools
import io
import logging
import math
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from transformer_jax.checkpoints.step_folder import PROVENANCE, step_folders
from transformer_jax.checkpoints.store import Checkpoints, open_snapshot
from transformer_jax.data.examples import Corpus, Example, RandomAccess
from transformer_jax.data.files.text import TextBlocks
from transformer_jax.data.sources import open_split
from transformer_jax.errors import MissingSplitError, UserError, user_errors
from transformer_jax.logs.records import last_recorded_step
from transformer_jax.parallel import hosts
from transformer_jax.runs import config, frozen, provenance
from transformer_jax.runs.build import build_task, task_kind, vocab_sizes
from transformer_jax.runs.opened import open_workdir
from transformer_jax.runs.outside import open_data, refuse_loaded
from transformer_jax.runs.settings import COMMAND, DEFAULT, Settings
from transformer_jax.runs.user_modules import Modules, UserModule, load_modules, record_modules
from transformer_jax.runs.workdir import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    REFERENCE,
    TOKENIZER,
    WorkdirHandle,
    workdir_path,
)
from transformer_jax.runtime.files import remove
from transformer_jax.summary import Summarized, counted
from transformer_jax.tasks.interface import Task, TaskKind
from transformer_jax.tokenization import (
    TOKENIZERS,
    SymbolTokenizer,
    Tokenizers,
    copy_tokenizers,
    load_tokenizers,
    train_tokenizers,
)
from transformer_jax.training.optimizer import raised_rate

logger = logging.getLogger(__name__)

_IDLE_DATA_FIELDS = (
    *("max_source_length", "max_target_length", "max_length", "packing", "num_train_tokens"),
    *("weights", "cache_dir", "num_workers", "order_seed"),
)
"""Fields of the section `data` that tokenizers do not depend on."""
_USED_WITH_COPIED = ("tokenizer.tags", "tokenizer.sampling")
_SAMPLED_BYTES = 2**28  # of text in blocks, for training a tokenizer


@dataclasses.dataclass(frozen=True)
class Training:
    """Inputs of a training, of a run or of replicas, opened before it writes anything.

    Attributes:
      members: the settings of each replica; of a run alone its own.
      checkpoints: those of the run, or the joint ones of replicas, with the provenance of what has
        been read so far.
      snapshots: the checkpoints of the frozen parameters, by name.
    """

    members: tuple[Settings, ...]
    modules: Sequence[UserModule]
    examples: Corpus
    checkpoints: Checkpoints
    snapshots: dict[str, Any]

    @property
    def settings(self) -> Settings:
        """The settings of the run, or of the first replica."""
        return self.members[0]

    def open_tasks(self, folder: Path) -> list[Task]:
        """Builds the task of each member, the same one for those with equal numbers of model and
        loss, with the tokenizers that `prepare` has written and the teacher; adds these to the
        provenance, and the teacher's stored predictions to the snapshots."""
        tokenizers = load_tokenizers(folder / TOKENIZER)
        frozen.require_vocabularies(self.settings, tokenizers)
        trained_with = None
        if self.checkpoints.latest_step() is not None:
            latest = self.checkpoints.snapshot(items=(PROVENANCE,))
            trained_with = latest.provenance.get("teacher")
        teacher, stored = frozen.open_teacher(
            self.settings, tokenizers, folder, self.examples, trained_with
        )
        self.checkpoints.provenance |= provenance.tokenizer_provenance(tokenizers)
        self.checkpoints.provenance |= frozen.frozen_provenance(stored)
        sizes = vocab_sizes(tokenizers)
        build = functools.cache(lambda settings: build_task(settings, sizes, tokenizers, teacher))
        tasks = []
        for member in self.members:
            settings = dataclasses.replace(self.settings, model=member.model, train=member.train)
            tasks.append(frozen.with_stored_scores(build(settings), settings, folder))
        self.snapshots.update(stored)
        return tasks


def open_training(
    configs: Sequence[Settings | ConfigDict], modules: Modules, handle: WorkdirHandle
) -> Training:
    """Opens all that a training reads; writes nothing.

    Args:
      configs: the config of each replica; of a run alone its own.
      handle: the workdir, or the folder of the joint checkpoints.

    Raises:
      UserError: a config, its data, a module or another run cannot be used; in a job in all
        processes, if one cannot use them, or if they differ.
    """

    def open_and_describe() -> tuple[Any, hosts.Fingerprint]:
        user_modules = load_modules(modules, handle.folder)
        members = [config.resolve(member, {}, (), COMMAND) for member in configs]
        refuse_loaded(members[0])
        runs = {"train.init_from": members[0].train.init_from}
        runs |= {source.field: source.run for source in frozen.frozen_sources(members[0]).values()}
        splits = open_splits(members[0])
        described = provenance.run_provenance(splits)
        started_from = {}
        for field, run in runs.items():
            if run:
                folders = step_folders(workdir_path(run) / CHECKPOINTS)
                started_from[f"the run of {field}"] = provenance.newest_checkpoint(folders)
        return (members, user_modules, splits["train"], described), described | started_from

    members, user_modules, examples, described = hosts.require_agreement(open_and_describe)
    checkpoints = handle.checkpoints(members[0].checkpoint)
    saved = None
    if members[0].train.scale_to_data and checkpoints.latest_step() is not None:
        saved = hosts.run_on_primary(lambda: saved_sizes(handle.folder / CONFIG))
    members = tuple(scaled_to_data(settings, examples, saved) for settings in members)
    config.check_sections(members[0])
    snapshots = frozen.open_frozen(members[0])
    checkpoints.provenance |= frozen.frozen_provenance(snapshots) | described
    return Training(members, user_modules, examples, checkpoints, snapshots)


def open_splits(settings: Settings) -> dict[str, Corpus]:
    """Opens the training and validation data, and the test data if they are here; logs where
    training will run, and what was read.

    Raises:
      UserError: they cannot be used, or there is no validation split: now, not after a tokenizer
        has been trained and a step compiled.
    """
    devices = f"{counted(jax.device_count(), 'device')} ({jax.devices()[0].device_kind})"
    message = "%s on %s: reading the training data of %s"
    logger.info(message, settings.task.name, devices, settings.data.name)
    start = time.perf_counter()
    examples = open_split(settings.data, "train")
    read = counted(len(examples), "example")
    if isinstance(examples, TextBlocks):
        read = f"{counted(len(examples), 'block')} of text"
    logger.info("read %s in %.1f s", read, time.perf_counter() - start)
    try:
        splits = {"train": examples, "valid": open_split(settings.data, "valid")}
    except MissingSplitError as error:
        raise UserError(
            f"there is no validation split ({error}); training scores one every eval.every_steps "
            "steps to choose its best checkpoint: set aside some examples that are not trained on"
        ) from error
    with contextlib.suppress(UserError):  # training does not read them
        splits["test"] = open_split(settings.data, "test")
    return splits


@dataclasses.dataclass(frozen=True, repr=False)
class Examples(Summarized, RandomAccess[Example]):
    """The examples of a split: a sequence of dicts of texts, read when they are requested."""

    corpus: Corpus

    def __len__(self) -> int:
        return len(self.corpus)

    def item(self, index: int) -> Example:
        return self.corpus[index]

    def summary(self) -> Mapping[str, Any]:
        """The number of examples, and the first ones."""
        first = {str(i): " | ".join(self[i].values()) for i in range(min(5, len(self)))}
        return {"examples": len(self), **first}


def read_data(run: Any, split: str = "train") -> Examples:
    """The examples of a split of the data of a config or a `Run`, such as {"source", "target"}."""
    settings = config.read_settings(run) if isinstance(run, ConfigDict) else run.settings
    return Examples(open_data(settings, split))


def prepare(training: Training, workdir: Path) -> None:
    """Writes config (of replicas the first one's), tokenizers and the names of the user's modules
    to a workdir, which may hold an earlier start of the run.

    Raises:
      UserError: it holds another run, or one whose checkpoints or tokenizers are missing or that
        was trained on other data, or the tokenizers cannot be made.
    """
    settings = training.settings
    checkpoints = training.checkpoints
    saved_config = workdir / CONFIG
    tokenizer = workdir / TOKENIZER
    if checkpoints.has_params_only():
        raise UserError(
            f"{workdir} holds a published model, without the state of a training; choose another "
            f"--workdir and start from it: --config.train.init_from={workdir}"
        )
    if checkpoints.latest_step() is not None:
        check_same_run(settings, config.load_json(saved_config), workdir)
        now = checkpoints.provenance | provenance.tokenizer_provenance(load_tokenizers(tokenizer))
        # Now, before anything is overwritten; `fit` checks the checkpoint it resumes from.
        latest = open_snapshot(checkpoints.directory, items=(PROVENANCE,))
        provenance.check_provenance(now, latest.provenance, workdir)
    else:
        _require_nothing_lost(workdir, checkpoints.directory)
        for field, run in (
            ("train.init_from", settings.train.init_from),
            ("train.distillation.teacher", settings.teacher),
        ):
            if run:
                _check_origin(run, field)
        # Whatever is there is from a start that failed, with any config.
        remove(tokenizer)
        remove(workdir / REFERENCE)
        checkpoints.directory.mkdir(exist_ok=True)
    build_tokenizers(settings, tokenizer, training.examples)
    config.save_json(settings, saved_config)
    record_modules(workdir, settings, training.modules)


def check_same_run(settings: Settings, saved: Settings, workdir: str | Path) -> None:
    """Raises UserError, naming the first difference, if `workdir` holds the run of other settings.

    Logs a warning if the run is extended at a higher learning rate.
    """
    before = saved.values
    now = settings.values
    unread = saved.resolved.unread  # earlier versions allowed them to be set
    for name in {**before, **now}:
        if name in unread:
            continue
        old: Any = before.get(name)
        new: Any = now.get(name)
        fixed = {name, name.partition(".")[0]} & {*config.FIXED} and name not in config.CHANGEABLE
        grows = name == "train.num_steps" and new > old
        if name == "optimizer.decay_steps":
            grows = (new or now["train.num_steps"]) >= (old or before["train.num_steps"])
        if fixed and old != new and not grows:
            raise UserError(
                f"{workdir} holds another run: its {name} is {old!r}, the config's is {new!r}; "
                "choose another --workdir or the same value"
            )
    steps_before = before["train.num_steps"]
    steps_now = now["train.num_steps"]
    if steps_before < steps_now:
        width = settings.model.d_model
        message = raised_rate(saved.optimizer, settings.optimizer, width, steps_before, steps_now)
        if message:
            logger.warning("%s: %s", workdir, message)


def _check_origin(run: str, field: str) -> None:
    """Raises UserError if there is no such run, or it has other tokenizers than in training."""
    with user_errors(f"config.{field}", kinds=UserError):
        opened = open_workdir(run, modules=None)
    opened.check_provenance()


def _require_nothing_lost(workdir: Path, checkpoints: Path) -> None:
    """Raises UserError if a run without any checkpoint must have had some.

    A start creates their folder before it writes the config, and the second save waits for the
    first.
    """
    saved_config = workdir / CONFIG
    if not saved_config.exists():
        return
    two_saves = 2 * config.load_json(saved_config).checkpoint.every_steps
    if not checkpoints.is_dir() or last_recorded_step(workdir / METRICS) > two_saves:
        raise UserError(
            f"{workdir} holds a run whose {checkpoints.name}/ is gone (a disk that is not "
            "mounted?); restore it, or start again in another --workdir"
        )


_shared: ContextVar[dict[str, Path] | None] = ContextVar("shared tokenizers", default=None)
"""Folders of the tokenizers trained within `sharing_tokenizers`, by `_tokenizer_key`."""


@contextlib.contextmanager
def sharing_tokenizers() -> Iterator[None]:
    """Trains the tokenizers of runs with equal data and tokenizer settings once in the block."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def build_tokenizers(
    settings: Settings, directory: Path, examples: Sequence[dict[str, str]]
) -> Tokenizers:
    """Loads the tokenizers in `directory`; if it does not exist, they are trained on the examples,
    or copied from the run of `train.init_from` or the teacher's."""
    if directory.exists():
        return load_tokenizers(directory)
    folders = _shared.get()
    if folders is None:
        return _train_tokenizers(settings, directory, examples)
    key = _tokenizer_key(settings, examples)
    if key in folders and folders[key].exists():
        return copy_tokenizers(folders[key], directory)
    tokenizers = _train_tokenizers(settings, directory, examples)
    folders[key] = directory
    return tokenizers


def _tokenizer_key(settings: Settings, examples: Sequence[Any]) -> str:
    """Describes all that the tokenizers of a run depend on."""
    data = dataclasses.asdict(settings.data)
    data = {name: value for name, value in data.items() if name not in _IDLE_DATA_FIELDS}
    digest = provenance.data_digest(examples)
    tokenizer = dataclasses.replace(settings.tokenizer, sampling=0.0)
    return repr((tokenizer, settings.task, settings.tokenizers_from, data, digest))


def _train_tokenizers(
    settings: Settings, directory: Path, examples: Sequence[dict[str, str]]
) -> Tokenizers:
    kind = task_kind(settings)
    _check_examples(settings, kind, examples[0])
    if isinstance(examples, TextBlocks):
        examples = examples.sample(_SAMPLED_BYTES)
    listed: dict[str, Iterable[str] | SymbolTokenizer] = {
        side: _labels(examples, side, split) for side, split in kind.labels.items()
    }
    for side, symbols_of in kind.symbols.items():
        parts = (example[side] for example in examples)
        listed[side] = SymbolTokenizer(sorted(symbols_of(settings.task, parts)))
    if settings.tokenizers_from:
        source = workdir_path(settings.tokenizers_from)
        tags = settings.tokenizer.tag_pieces
        copied = copy_tokenizers(source / TOKENIZER, directory, listed, kind.texts, tags)
        _tell_unused(settings, source)
        return copied
    texts = {side: _lines(examples, parts) for side, parts in kind.texts.items()}
    return train_tokenizers(settings.tokenizer, texts, directory, listed, kind.needs_mask)


def _tell_unused(settings: Settings, source: Path) -> None:
    """Logs the fields of the section `tokenizer` that the user has set otherwise than the run whose
    tokenizers are copied."""
    saved = config.load_json(source / CONFIG).values
    unused = [
        name
        for name, value in settings.values.items()
        if name.startswith("tokenizer.") and name not in _USED_WITH_COPIED
        if settings.origin(name) != DEFAULT and not settings.origin(name).is_loaded
        if value != saved.get(name)
    ]
    if unused:
        message = "%s: not used, because the tokenizers are those of %s, which has other values"
        logger.warning(message, ", ".join(unused), settings.tokenizers_from)


def _labels(
    examples: Sequence[Mapping[str, str]], side: str, split: Callable[[str], Iterable[str]]
) -> Iterator[str]:
    for example in examples:
        yield from split(example[side])


def _check_examples(settings: Settings, kind: TaskKind, example: Mapping[str, str]) -> None:
    if not kind.keys <= set(example):
        raise UserError(
            f"task {settings.task.name} reads {' and '.join(sorted(kind.keys))}, but the examples "
            f"of {settings.data.name} have {' and '.join(sorted(example))}: name their columns "
            "(data.text_field, data.label_field), or choose another data.name"
        )


def _lines(examples: Sequence[Mapping[str, str]], parts: Sequence[str]) -> Iterator[str]:
    for example in examples:
        for part in parts:
            yield from io.StringIO(example.get(part, ""), newline="\n")


SCALED = (
    *("train.num_steps", "optimizer.warmup_steps", "tokenizer.vocab_size"),
    *("logging.every_steps", "eval.every_steps", "checkpoint.every_steps"),
)
"""Fields that `scaled_to_data` lowers."""

_EPOCHS = 30  # Multi30k's config trains for 21 epochs, Tatoeba's for 5
_LEAST_STEPS = 400
_TOKEN_CHARACTERS = 4
_BYTES = 256
_MOST_READ = 200_000  # examples


def saved_sizes(path: Path) -> dict[str, int]:
    """The fields `SCALED` in the config.json of a run; logs how to train it with others."""
    saved = config.load_json(path).values
    message = "train.scale_to_data: num_steps stays %d, as all sizes do; --config=%s takes others"
    logger.info(message, saved["train.num_steps"], path)
    return {name: saved[name] for name in SCALED}


def scaled_to_data(
    settings: Settings,
    examples: Sequence[Mapping[str, str]],
    saved: Mapping[str, int] | None = None,
) -> Settings:
    """The settings with the fields `SCALED` lowered to the size of the training data, or as `saved`
    by the run that is resumed.

    The result has `train.scale_to_data` off, so later uses keep its values. Settings that have it
    off are returned unchanged.
    """
    if not settings.train.scale_to_data:
        return settings
    if saved is not None:
        return config.override(settings, {**saved, "train.scale_to_data": False})
    stride = math.ceil(len(examples) / _MOST_READ)
    sample = [examples[i] for i in range(0, len(examples), stride)]
    sides = [[example[part] for example in sample] for part in ("source", "target")]
    tokens = max(sum(map(len, side)) for side in sides) * stride // _TOKEN_CHARACTERS
    steps = math.ceil(max(_LEAST_STEPS, _EPOCHS * tokens / settings.train.tokens_per_batch))
    sizes = {
        "train.num_steps": steps,
        "optimizer.warmup_steps": max(1, min(steps, settings.train.num_steps) // 10),
        "logging.every_steps": steps // 40,
        "eval.every_steps": steps // 10,
        "checkpoint.every_steps": steps // 10,
        "tokenizer.vocab_size": _vocabulary_size(settings, sides),
    }
    sizes = {name: min(sizes[name], settings.values[name]) for name in SCALED}
    listed = ", ".join(f"{name} {value}" for name, value in sizes.items())
    data = f"{len(examples):,} pairs of about {tokens:,} tokens in each language"
    message = "scaled to %s: %s (train.scale_to_data=false takes the config's own values)"
    logger.info(message, data, listed)
    # Others keep their origins, so that no warning names fields that nobody has set.
    lowered = {name: size for name, size in sizes.items() if size < settings.values[name]}
    return config.override(settings, lowered | {"train.scale_to_data": False})


def _vocabulary_size(settings: Settings, sides: Sequence[Sequence[str]]) -> int:
    """Half as many subwords as the texts have words, and all characters: byte-pair encoding can
    always make them, as every word becomes one token after enough merges."""
    tokenizer = settings.tokenizer
    kind = TOKENIZERS[tokenizer.kind]
    if kind.train is None or settings.tokenizers_from:  # it has its size already
        return tokenizer.vocab_size
    texts: Iterable[Sequence[str]] = [sum(map(list, sides), [])] if tokenizer.joint else sides
    sizes = []
    for lines in texts:
        words = {word for line in lines for word in unicodedata.normalize("NFKC", line).split()}
        characters = len({character for word in words for character in word}) + 1  # the space
        sizes.append(kind.least_vocab_size + characters + len(words) // 2)
    return min(sizes) + _BYTES * tokenizer.byte_fallback

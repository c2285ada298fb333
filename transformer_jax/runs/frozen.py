# SPDX-License-Identifier: Apache-2.0
"""Other runs whose parameters a run reads: base of LoRA, reference of DPO, teacher, draft."""

import functools
import hashlib
import io
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.checkpoints.store import Snapshot
from transformer_jax.data.batches.loss_masks import LossMaskedTexts
from transformer_jax.data.examples import Corpus
from transformer_jax.errors import UserError
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.inference.draft import LOOKUP, Drafted, DraftedModel, Lookup
from transformer_jax.losses import TopPredictions
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import Seq2Seq
from transformer_jax.nn.int8 import convert_weights
from transformer_jax.nn.lora import merge_adapters, with_adapters
from transformer_jax.parallel import hosts, sharding
from transformer_jax.runs.build import build_taught, held_trees, task_kind
from transformer_jax.runs.opened import Opened, open_workdir
from transformer_jax.runs.outside import refuse_loaded
from transformer_jax.runs.provenance import check_provenance
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.workdir import CONFIG, REFERENCE, workdir_path
from transformer_jax.runtime.files import read_made, write_made
from transformer_jax.tasks import teachers
from transformer_jax.tasks.interface import Params, Task, with_model
from transformer_jax.tokenization import Tokenizer, Tokenizers
from transformer_jax.tokenization.word_level import Labels

logger = logging.getLogger(__name__)


class FrozenSource(NamedTuple):
    """The run that a frozen tree comes from, the config field that names it, and the setting that
    needs it, for messages."""

    field: str
    run: Any
    need: str


def frozen_sources(settings: Settings) -> dict[str, FrozenSource]:
    """The frozen trees that a run needs, by name (`TaskKind.frozen`).

    Raises:
      UserError: the config names no run for one of them.
    """
    task = settings.task.name
    sources = {}
    fields = task_kind(settings).frozen
    if not isinstance(fields, Mapping):
        if len(fields) > 1:
            raise UserError(
                f"config.task.name {task!r} has the frozen trees {', '.join(fields)}, all of one "
                "run; name the config field of each: "
                f"TaskKind(frozen={{{fields[0]!r}: 'task.{task}.{fields[0]}', ...}})"
            )
        fields = dict.fromkeys(fields, "train.init_from")
    for tree, field in fields.items():
        which = "that training starts from" if field == "train.init_from" else f"of {field}"
        need = f"config.task.name {task!r} compares with the run {which}"
        if field not in settings.values:
            raise UserError(f"{need}, but there is no config.{field}")
        sources[tree] = FrozenSource(field, settings.values[field], need)
    if settings.lora.rank is not None:
        need = f"config.lora.rank is {settings.lora.rank}, adapters beside another run's parameters"
        sources["base"] = FrozenSource("train.init_from", settings.train.init_from, need)
    if settings.distillation:
        need = f"config.train.loss {settings.train.loss!r} compares with a teacher"
        sources["teacher"] = FrozenSource("train.distillation.teacher", settings.teacher, need)
    for source in sources.values():
        if not source.run:
            raise UserError(
                f"{source.need}, but {source.field} names no run: set it to the workdir of one"
            )
    return sources


def require_base_needed(settings: Settings, base: str | Path) -> None:
    """Raises UserError if the user names a run that is not needed."""
    sources = frozen_sources(settings).values()
    if not any(source.field == "train.init_from" for source in sources):
        raise UserError(
            f"--base: {base} is not needed; the run has no adapters (lora.rank) and learned no "
            "preferences"
        )


def open_frozen(settings: Settings, names: Collection[str] | None = None) -> dict[str, Snapshot]:
    """Opens the latest checkpoint of the run of each frozen tree that training holds, or of those
    of these names (`open_source`)."""
    chosen = set(held_trees(settings) if names is None else names)
    if settings.distillation and settings.distillation.top_k:
        chosen.discard("teacher")  # its predictions are stored
    # All are opened, and so refused if they cannot be, before the first one is read.
    sources = {name: open_source(settings, name) for name in held_trees(settings) if name in chosen}
    return {name: source.snapshot for name, source in sources.items()}


def require_vocabularies(settings: Settings, tokenizers: Tokenizers) -> None:
    """Raises UserError if a run that a frozen tree comes from has another vocabulary than this one,
    which has those of the run that it starts from."""
    for tree, source in frozen_sources(settings).items():
        if tree in task_kind(settings).frozen and source.field != "train.init_from":
            other = open_source(settings, tree)
            require_same_vocabulary(
                tokenizers, other.tokenizers, f"the run {source.run} ({source.field})"
            )


def planned_teacher(
    settings: Settings, tokenizers: Tokenizers | None = None
) -> teachers.ModelTeacher | None:
    """The teacher whose model runs in each step; None if steps do without (`top_k`).

    Args:
      tokenizers: of the run; None before any text is read.
    """
    if settings.distillation is None or settings.distillation.top_k:
        return None
    return _open_model(settings, tokenizers)


def open_teacher(
    settings: Settings,
    tokenizers: Tokenizers,
    workdir: Path,
    examples: Corpus,
    trained_with: str | None,
) -> tuple[teachers.Teacher | None, dict[str, Any]]:
    """Opens the teacher of a run, None if the loss has none, and {"teacher": snapshot} of stored
    predictions.

    With `top_k` the teacher's predictions are computed and stored in the workdir, unless an earlier
    start has stored those of the same data, checkpoint and options.

    Args:
      trained_with: id of the checkpoint of the teacher that the run has been trained with; None
        before its first checkpoint.

    Raises:
      UserError: the teacher is missing, has another vocabulary or checkpoint, or a model that
        cannot do the task.
    """
    options = settings.distillation
    if options is None or options.top_k is None:
        return planned_teacher(settings, tokenizers), {}
    top_k = options.top_k
    student = build_taught(settings, settings, tokenizers)  # prepares the teacher's inputs as well
    rows = teachers.target_rows(student, student.prepare(examples, training=True))
    checkpoint = trained_with or open_source(settings, "teacher").snapshot.id

    def predict() -> dict[str, np.ndarray]:
        task = _open_model(settings, tokenizers).task
        snapshot = open_source(settings, "teacher").snapshot
        check_provenance({"teacher": snapshot.id}, {"teacher": checkpoint}, workdir)
        items = task.prepare(examples, training=True)
        params = snapshot.params(_abstract_params(settings, task))
        batch_size = settings.decode.batch_size
        top = teachers.predict_top(task, params, items, batch_size, top_k, options.temperature)
        return top._asdict()

    parts = (rows.sha256, checkpoint, top_k, options.temperature, sorted(tokenizers.sha256.items()))
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    stored: Any = _stored_arrays(workdir / REFERENCE / f"teacher-{digest}", predict)
    top = TopPredictions(stored["tokens"], stored["log_probs"])
    teacher = teachers.StoredTeacher(top, rows.starts, checkpoint)
    return teacher, {"teacher": teacher}


def _stored_arrays(path: Path, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Reads arrays of a file of `remake`, or makes them, with a warning if they cannot be kept.

    The processes of a job make them together unless every one of them has read them.
    """
    content = read_made(path, path.name)
    if all(hosts.gather(content is not None)):
        assert content is not None
        return _arrays_of(content)
    arrays = make()

    def write() -> None:
        try:
            write_made(path, path.name, lambda file: np.savez(file, allow_pickle=False, **arrays))
        except OSError as error:
            logger.warning("log-probabilities of another run are not kept: %s", error)

    hosts.run_on_primary(write)
    return arrays


def _arrays_of(content: memoryview) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _open_model(settings: Settings, tokenizers: Tokenizers | None) -> teachers.ModelTeacher:
    """The model of the teacher's run; `tokenizers` are None if no text is read."""
    source = open_source(settings, "teacher")
    if tokenizers is not None:
        name = f"the teacher {source.workdir} (train.distillation.teacher)"
        require_same_vocabulary(tokenizers, source.tokenizers, name)
    return teachers.ModelTeacher(build_taught(settings, source.settings, tokenizers))


def require_same_vocabulary(tokenizers: Tokenizers, other: Tokenizers, name: str) -> None:
    """Raises UserError, with the first difference, if the run `name` has other tokens."""
    refusal = f"{name} has another vocabulary"
    for side, vocabulary in tokenizers.sides.items():
        if side not in other.sides:
            raise UserError(f"{refusal}: no side {side!r}; choose a run of the same task")
        ours = _tokens_of(vocabulary)
        theirs = _tokens_of(other[side])
        if len(ours) != len(theirs):
            raise UserError(
                f"{refusal}: {len(theirs):,} tokens of side {side!r}, not {len(ours):,}; train "
                "both with the same tokenizers"
            )
        for i, (our_token, their_token) in enumerate(zip(ours, theirs, strict=True)):
            if our_token != their_token:
                raise UserError(
                    f"{refusal}: token {i} of side {side!r} is {their_token!r}, not "
                    f"{our_token!r}; train both with the same tokenizers"
                )


def _tokens_of(vocabulary: Tokenizer | Labels) -> Sequence[str]:
    if isinstance(vocabulary, Labels):
        return vocabulary.names
    return vocabulary.pieces(range(vocabulary.vocab_size))


def frozen_provenance(snapshots: Mapping[str, Snapshot]) -> dict[str, str]:
    """Describes the frozen trees of a run (`runs.provenance`)."""
    names = {"base": "base of its adapters"}
    return {names.get(name, name): snapshot.id for name, snapshot in snapshots.items()}


def load_frozen(settings: Settings, task: Task) -> dict[str, Any]:
    """Loads the frozen trees that the task's loss reads in an evaluation, of the task's shapes."""
    names = task_kind(settings).held
    if not names:
        return {}
    abstract = _abstract_params(settings, task)
    snapshots = open_frozen(settings, names)
    return {name: snapshot.params(abstract) for name, snapshot in snapshots.items()}


def read_params(opened: Opened, average: int | None = None) -> Any:
    """Reads the parameters of a run, with its adapters merged into their base.

    With `average`, that many snapshots up to its checkpoint are averaged. Errors as of `load`.
    """
    settings = opened.settings
    abstract = _abstract_params(settings, opened.task)
    saved = abstract
    if settings.lora.rank is not None:  # the checkpoint holds the adapters alone
        mesh = sharding.mesh_for_inference(settings.parallel)
        init = functools.partial(settings.lora.init_adapters, jax.random.key(0))
        saved = sharding.add_shardings(jax.eval_shape(init, abstract), mesh)
    frozen = open_frozen(settings, ("base",))
    opened.check_provenance(frozen_provenance(frozen))
    if average is None:
        params = opened.snapshot.params(saved)
    else:
        params = opened.snapshot.average(average, saved, settings.checkpoint.keep)[1]
    if "base" in frozen:
        params = merge_adapters(with_adapters(frozen["base"].params(abstract), params))
    return params


def _abstract_params(settings: Settings, task: Task) -> Any:
    """Shapes, dtypes and shardings of a task's parameters, for inference."""
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    return sharding.add_shardings(shapes, sharding.mesh_for_inference(settings.parallel))


def open_source(settings: Settings, tree: str) -> Opened:
    """Opens the run of a frozen tree, by its name in `frozen_sources`.

    Raises:
      UserError: the run is not named or missing, has adapters itself, or may only be read if the
        user names it.
    """
    source = frozen_sources(settings)[tree]
    refuse_loaded(settings, (source.field,), "--base")
    workdir = workdir_path(source.run)
    if not (workdir / CONFIG).exists():
        is_base = source.field == "train.init_from"
        how = ", or name it with --base=RUN (base= in Python)" if is_base else ""
        raise UserError(
            f"{source.need}, and {source.run} ({source.field}) is not there; bring it back{how}"
        )
    opened = open_workdir(workdir, modules=None)
    if opened.settings.lora.rank is not None:
        raise UserError(
            f"the run {source.run} ({source.field}) has adapters itself; export it, which merges "
            "them, and import the result"
        )
    return opened


def with_stored_scores(task: Task, settings: Settings, workdir: Path) -> Task:
    """The task, with a function that computes and stores scores if it reads stored ones
    (`TaskKind.stored`)."""
    tree = task_kind(settings).stored
    if tree is None:
        return task
    reading: Any = task
    return reading.with_stored_scores(
        functools.partial(_reference_scores, settings, tree, workdir, task)
    )


def _reference_scores(
    settings: Settings, tree: str, workdir: Path, task: Any, texts: LossMaskedTexts
) -> np.ndarray:
    """Log-probabilities of the marked tokens of D texts under a frozen tree, float32 [D]; computed
    once and stored in the workdir, so that later the reference run is not needed for them."""
    digest = hashlib.sha256()
    for array in (texts.tokens, texts.loss_mask, texts.starts):
        digest.update(array.tobytes())

    def score() -> dict[str, np.ndarray]:
        source = open_source(settings, tree)
        hosts.run_on_primary(lambda: _require_same_base(workdir, source))
        params = source.snapshot.params(_abstract_params(settings, task))
        log_probs = task.score_texts(params, texts, settings.decode.batch_size)
        return {"log_probs": log_probs, "base": np.array(source.snapshot.id)}

    return _stored_arrays(workdir / REFERENCE / digest.hexdigest()[:32], score)["log_probs"]


def _require_same_base(workdir: Path, source: Opened) -> None:
    """Raises UserError if scores that are stored in a workdir are from another checkpoint."""
    here = source.snapshot.id
    for path in sorted((workdir / REFERENCE).glob("*")):
        content = read_made(path, path.name)
        base = here if content is None else str(_arrays_of(content)["base"])
        if base != here:
            raise UserError(
                f"{workdir} was compared with another checkpoint of {source.workdir}: {base}; "
                f"here: {here}; restore that checkpoint"
            )


def add_draft(run: Any, params: Params, decode: DecodeConfig) -> tuple[Task, Params]:
    """The task of a run and its parameters, with the draft that `decode.draft` names.

    Raises:
      UserError: the draft is missing or damaged, is a run of another task or vocabulary, may only
        be read if the user names it, or one of the two models cannot take back proposals.
    """
    name = str(decode.draft)
    if name == LOOKUP:
        config = run.model.config
        is_pair = isinstance(run.model, Seq2Seq)
        draft: Any = Lookup(config.target_vocab_size if is_pair else config.vocab_size)
        pair = Drafted(params, {})
    else:
        opened = open_workdir(name)
        draft = opened.task.model
        base_class = DecoderOnly if isinstance(run.model, DecoderOnly) else Seq2Seq
        if not isinstance(draft, base_class):
            raise UserError(
                f"decode.draft: the model of {name} is {type(draft).__name__}; take one whose "
                f"model is {type(run.model).__name__}"
            )
        where = f"the draft {name} (decode.draft)"
        require_same_vocabulary(run.tokenizer, opened.tokenizers, where)
        pair = Drafted(params, convert_weights(decode.weights, read_params(opened)))
    return with_model(run.task, DraftedModel(run.model, draft, decode.draft_length)), pair

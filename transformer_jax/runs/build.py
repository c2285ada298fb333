# SPDX-License-Identifier: Apache-2.0
"""Builds the parts of a run from its settings: task, engine, training step, evaluator."""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from transformer_jax.data.batches import pipeline
from transformer_jax.data.batches.order import Preprocess, WindowedBlocks
from transformer_jax.errors import UserError, user_errors
from transformer_jax.inference.config import DecodeConfig
from transformer_jax.losses import LossOptions
from transformer_jax.models import MODELS
from transformer_jax.nn.hooks import intercept_results
from transformer_jax.nn.per_device import use_axes, use_sharded_call
from transformer_jax.nn.transformer import HOST, Residual, rematerialized_layers, undivided_reason
from transformer_jax.parallel import hosts, sharding
from transformer_jax.parallel.engines import Engine, JitEngine, ScanEngine, TrainStep, make_engine
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import describe_module_error
from transformer_jax.runtime.platform import require_memory_kind
from transformer_jax.tasks import TASKS
from transformer_jax.tasks.base import BaseTask, preprocess_sampled
from transformer_jax.tasks.config import TaskConfig
from transformer_jax.tasks.interface import Batch, Frozen, LossSums, Task, TaskKind, TaskParts
from transformer_jax.tasks.teachers import StoredTeacher, Teacher, preprocess_numbered
from transformer_jax.tokenization import Tokenizers, expected_sizes, resegmenter_of
from transformer_jax.training.callbacks import CALLBACKS, Callback, TrainingRun
from transformer_jax.training.config import TrainConfig
from transformer_jax.training.diagnostics import Diagnostics
from transformer_jax.training.evaluation import Evaluator
from transformer_jax.training.optimizer import make_optimizer, make_schedule, stop_frozen_gradients
from transformer_jax.training.schedules import SCHEDULES, ScheduleOptions
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Update, compute_update, train_step

logger = logging.getLogger(__name__)


def task_kind(settings: Settings) -> TaskKind:
    """The registry entry of the task."""
    return TASKS.find(settings.task.name)


def build_task(
    settings: Settings,
    vocab_sizes: Mapping[str, int],
    tokenizers: Tokenizers | None,
    teacher: Teacher | None = None,
) -> Task:
    """Builds the task with its model.

    Args:
      vocab_sizes: {side: number of tokens}.
      tokenizers: the tokenizers of the run; None if no text is read.
      teacher: the teacher of training, if the loss has one (`runs.frozen.open_teacher`).

    Raises:
      UserError: the model refuses a choice, a side is missing, or a metric is set for a task that
        compares no texts.
    """
    kind = task_kind(settings)
    missing = kind.sides - vocab_sizes.keys()
    run = settings.train.init_from
    of_origin = run and f"; what the config does not set is that of {run} (train.init_from)"
    if missing:
        advice = f"start from another run than {run} (train.init_from)"
        raise UserError(
            f"task {settings.task.name} needs a vocabulary of side {min(missing)!r}, and there is "
            f"none among {', '.join(sorted(vocab_sizes))}; "
            + (advice if run else "restore the run's tokenizer folder")
        )
    if settings.task.metric and not kind.metric:
        raise UserError(
            f"config.task.metric is {settings.task.metric!r}, but task {settings.task.name} "
            "compares no texts; leave it out"
        )
    train = settings.train
    parts = TaskParts(
        task=settings.task,
        model=settings.model,
        model_class=MODELS.find(settings.model.architecture),
        data=settings.data,
        loss=LossOptions(
            label_smoothing=train.label_smoothing,
            loss_tiles=train.loss_tiles,
            r_drop=train.r_drop,
            z_loss=train.z_loss,
            loss=train.loss,
            teacher=teacher,
            options=train.options,
        ),
        metric=settings.task.metric or kind.metric,
        vocab_sizes=vocab_sizes,
        tokenizers=dataclasses.replace(
            tokenizers or Tokenizers({}), sampling=settings.tokenizer.sampling
        ),
    )
    try:
        task = kind.build(parts)
        _require_segmentations(task, settings)
        if _teacher_of(task) is not teacher:
            raise ValueError(f"task {settings.task.name} has no `loss_options` for a teacher")
        jax.eval_shape(task.init, jax.random.key(0))  # a Flax module refuses its choices here
    except UserError:
        raise
    except Exception as error:
        line = describe_module_error(error)
        if line:
            raise UserError(f"config.model: {line}") from error
        if isinstance(error, ValueError):
            raise UserError(f"config.model: {error}{of_origin or ''}") from error
        raise
    return task


def _require_segmentations(task: Task, settings: Settings) -> None:
    """Raises UserError if `tokenizer.sampling` is on, and each tokenizer has one segmentation."""
    if not settings.tokenizer.sampling:
        return
    tokenizers = task.tokenizers.sides.values()
    if tokenizers and not any(map(resegmenter_of, tokenizers)):
        raise UserError(
            "config.tokenizer.sampling: the tokenizer of this run is neither byte-pair encoding "
            "nor unigram, and has one way to cut a text; leave it out"
        )


def held_trees(settings: Settings) -> tuple[str, ...]:
    """Names of the frozen parameter trees that training holds beside the trained one."""
    adapters = () if settings.lora.rank is None else ("base",)
    teacher = ("teacher",) if settings.distillation else ()
    return (*adapters, *task_kind(settings).held, *teacher)


def build_taught(settings: Settings, teacher: Settings, tokenizers: Tokenizers | None) -> Task:
    """Builds the task of a run with the model of its teacher.

    Args:
      teacher: settings of the teacher's run.
      tokenizers: the tokenizers of both; None if no text is read.

    Raises:
      UserError: the teacher's model cannot do the task, or has too few positions for its rows.
    """
    # The default `train`: a loss without a teacher.
    taught = dataclasses.replace(settings, model=teacher.model, train=TrainConfig())
    sizes = vocab_sizes(tokenizers) if tokenizers else assumed_vocab_sizes(settings)
    try:
        return build_task(taught, sizes, tokenizers)
    except UserError as error:
        line = str(error).removeprefix("config.")
        raise UserError(f"config.train.distillation.teacher: {settings.teacher}: {line}") from error


def _teacher_of(task: Task) -> Teacher | None:
    return getattr(getattr(task, "loss_options", None), "teacher", None)


def build_untokenized_task(settings: Settings, teacher: Teacher | None = None) -> Task:
    """The task with its model, before any text is read; vocabulary sizes are assumed."""
    return build_task(settings, assumed_vocab_sizes(settings), None, teacher)


def vocab_sizes(tokenizers: Tokenizers) -> dict[str, int]:
    """The vocabulary size of each side."""
    return {side: tokenizer.vocab_size for side, tokenizer in tokenizers.sides.items()}


def assumed_vocab_sizes(settings: Settings) -> dict[str, int]:
    """Vocabulary sizes before any text is read, for estimates.

    They are those of the config, two labels, and 80 symbols, about as many as a treebank has.
    """
    kind = task_kind(settings)
    listed = dict.fromkeys(kind.labels, 2) | dict.fromkeys(kind.symbols, 80)
    return expected_sizes(settings.tokenizer, kind.texts, kind.needs_mask) | listed


def build_engine(settings: Settings, devices: Sequence[jax.Device] | None = None) -> Engine:
    """Builds the engine on these devices, or on all; UserError if they do not fit the config."""
    with user_errors("config.parallel"):
        engine = make_engine(settings.parallel, sharding.make_mesh(settings.parallel, devices))
    return ScanEngine(engine) if settings.model.scan_layers else engine


def abstract_state(settings: Settings, init_state: jax.stages.Wrapped, mesh: Mesh) -> Any:
    """Shapes, dtypes and shardings of the state; UserError if the mesh does not divide it."""
    with user_errors("config.parallel"):
        return sharding.add_shardings(jax.eval_shape(init_state, settings.seed), mesh)


def build_training(
    settings: Settings, task: Task, engine: Engine
) -> tuple[Callable[[Any], Any], TrainStep, jax.stages.Wrapped]:
    """Builds the schedule, the training step and the initial state.

    Returns:
      The schedule (updates done -> learning rate), the pure training step, and a function from a
      seed to the first state, whose frozen parameters are initial ones.

    Raises:
      UserError: devices lack the memory that `train.remat` needs, or cannot share a batch or the
        tokens of its rows.
    """
    check_divided_tokens(settings, task)
    schedule = _schedule(settings)
    optimizer = build_optimizer(settings)
    train = settings.train
    # All frozen trees but the teacher's ("base", "reference") are of the task's own model.
    inits: dict[str, Any] = {name: task.init for name in held_trees(settings) if name != "teacher"}
    teacher = _teacher_of(task)
    if teacher:
        inits["teacher"] = teacher.init
    step = functools.partial(
        train_step,
        axis_name=engine.axis_name,
        ema_decay=settings.optimizer.ema_decay,
        spike_factor=train.spike_factor if train.detects_spikes else None,
        **_update_options(settings, task, engine, optimizer),
    )

    @jax.jit  # traced once, also when only its shapes are needed
    def init_state(seed: int) -> TrainState:
        init_key, step_key = jax.random.split(jax.random.key(seed))
        params = task.init(init_key)
        frozen = {name: init(init_key) for name, init in inits.items()}
        if settings.lora.rank is not None:
            params = settings.lora.init_adapters(init_key, params)
        options = {
            "keeps_average": settings.optimizer.ema_decay is not None,
            "lowers_rate": settings.optimizer.plateau_patience is not None,
            "detects_spikes": train.detects_spikes,
        }
        return TrainState.create(params, optimizer, step_key, frozen=frozen, **options)

    return schedule, step, init_state


def build_update(settings: Settings, task: Task, engine: Engine) -> Callable[..., Update]:
    """Builds the pure function from a state and a batch, and traced numbers if there are any, to
    the update of `train_step`, with its gradients; errors as of `build_training`."""
    options = _update_options(settings, task, engine, build_optimizer(settings))
    return functools.partial(compute_update, axis_name=engine.axis_name, **options)


def check_divided_tokens(settings: Settings, task: Task) -> None:
    """UserError if the devices of `parallel.sequence` cannot divide the tokens of the rows."""
    model = settings.model
    count = settings.parallel.sequence
    if count == 1:
        return
    reason = undivided_reason(model)
    if "model.attention_layer" in getattr(MODELS.find(model.architecture), "ignores", ()):
        reason = f"architecture {model.architecture!r} reads one token after another"
    if reason:
        raise UserError(f"config.parallel.sequence {count} cannot divide this model: {reason}")
    unit = 2 * count  # two chunks a device (`ring_attention`)
    for side in task.read:
        length = task.lengths[side]
        if length % unit:
            raise UserError(
                f"config.parallel.sequence {count} cannot divide rows of {length} tokens ({side}): "
                f"set their length in config.data to a multiple of {unit}, such as "
                f"{-(-length // unit) * unit}"
            )


def build_diagnostics(settings: Settings, task: Task, engine: Engine) -> Diagnostics:
    """Diagnostics of training, of one program with all rows, also if the devices run the step on
    their own rows."""
    if engine.axis_name is not None:
        engine = JitEngine(engine.mesh)
    return Diagnostics(build_update(settings, task, engine), task.loss, engine.mesh)


def _schedule(settings: Settings) -> optax.Schedule:
    return make_schedule(settings.optimizer, settings.model.d_model, settings.train.num_steps)


def build_optimizer(settings: Settings) -> optax.GradientTransformation:
    """Builds the optimizer, with the schedule of the run."""
    return make_optimizer(settings.optimizer, _schedule(settings))


def _update_options(
    settings: Settings, task: Task, engine: Engine, optimizer: optax.GradientTransformation
) -> dict[str, Any]:
    """Arguments that the functions of `training.step` share; errors as of `build_training`."""
    remat = settings.train.remat
    if remat == "offload":
        require_memory_kind(engine.mesh.devices.flat[0], HOST, "config.train.remat 'offload'")
    regex = settings.optimizer.frozen

    def loss(params: Any, batch: Batch, rng: jax.Array | None, frozen: Frozen) -> LossSums:
        with (
            intercept_results(engine.constrain, Residual, "write"),
            rematerialized_layers(remat),
            use_sharded_call(engine.sharded_call),
            use_axes(engine.lent_mesh),
        ):
            params = params if regex is None else stop_frozen_gradients(regex, params)
            return task.loss(params, batch, rng, frozen)

    parts = micro_batches(settings, task, engine.row_shards)
    return {"loss_fn": loss, "optimizer": optimizer, "accumulation_steps": parts}


def batch_rows(settings: Settings, task: Task, shards: int = 1) -> int:
    """Rows of a training batch over all devices.

    Args:
      task: the task, which defines the length of a row.
      shards: the number of parts into which the devices divide the rows.

    Raises:
      UserError: `train.tokens_per_batch` has no room for a row, or the devices cannot share the
        rows.
    """
    with user_errors("config.train"):
        return settings.train.rows(max(task.lengths.values()), shards)


def micro_batches(settings: Settings, task: Task, shards: int) -> int:
    """Micro-batches of a training batch (gradient accumulation); arguments as of `batch_rows`."""
    with user_errors("config.train"):
        return settings.train.micro_batches(max(task.lengths.values()), shards)


def training_lengths(task: Task) -> Mapping[str, int]:
    """Slots of a training row for each feature."""
    teacher = _teacher_of(task)
    return teacher.lengths(task) if isinstance(teacher, StoredTeacher) else task.lengths


def batches_of(
    settings: Settings,
    task: Task,
    examples: Sequence[Any],
    rows: int,
    shard: tuple[int, int] = (0, 1),
    replicas: int = 1,
    logs_overlong: bool = True,
) -> pipeline.TrainBatches:
    """The training data, in the order of the settings' seed.

    Args:
      shard: (process, number of processes).
      replicas: the number of replicas that share the worker processes.
      logs_overlong: log the share of the examples that are longer than a row, in process 0.
    """
    items = task.prepare(examples, training=True)
    preprocess: Preprocess[Any] = task.preprocess
    if task.tokenizers.sampling and not isinstance(items, WindowedBlocks):
        preprocess = functools.partial(preprocess_sampled, task)
    teacher = _teacher_of(task)
    if isinstance(teacher, StoredTeacher):  # whose predictions are found by the number of an item
        items = teacher.numbered(items)
        preprocess = functools.partial(preprocess_numbered, task)
    slices = None
    if preprocess == task.preprocess and isinstance(task, BaseTask):
        slices = task.slices(items)
    if logs_overlong and shard[0] == 0 and not isinstance(items, WindowedBlocks):
        message = pipeline.describe_overlong(items, preprocess, training_lengths(task))
        if message:
            logger.warning("training data: %s", message)
    if settings.task.final_mask_rate is not None:
        preprocess = scheduled_masks(settings, task, items, rows)
    workers = math.ceil(pipeline.most_workers(settings.data.num_workers) / replicas)
    return pipeline.train_batches(
        items,
        preprocess,
        lengths=training_lengths(task),
        rows=rows,
        seed=settings.order_seed,
        shard=shard,
        num_workers=0 if settings.data.num_workers == "auto" else workers,
        most_workers=workers,
        slices=slices,
    )


def scheduled_masks(
    settings: Settings, task: Task, items: Sequence[Any], rows: int
) -> Preprocess[Any]:
    """Builds a function that masks texts with a rate that follows `task.mask_schedule`; arguments
    as of `batches_of`.

    Raises:
      UserError: how many texts a batch has is not known, as they are cut during training.
    """
    from transformer_jax.tasks.masked_lm import MaskedLanguageModeling, ScheduledMasks

    assert isinstance(task, MaskedLanguageModeling)  # no other task reads the field
    if isinstance(items, WindowedBlocks):
        raise UserError(
            "config.task.final_mask_rate asks for text that is cut before training: leave "
            "data.block_megabytes and tokenizer.sampling out"
        )
    sizes = pipeline.feature_sizes(items, task.preprocess, ["text"])["text"]
    rates = mask_rates(settings.task, settings.train.num_steps)
    return ScheduledMasks(task, rates, rows * task.max_length / float(sizes.mean()))


def mask_rates(task: TaskConfig, num_steps: int) -> np.ndarray:
    """The share of masked tokens in each step, from `mask_rate` to `final_mask_rate`."""
    assert task.final_mask_rate is not None
    end = max(num_steps, 2)
    options = ScheduleOptions(
        learning_rate=task.mask_rate,
        warmup_steps=1,
        decay_steps=end,
        final_ratio=task.final_mask_rate / task.mask_rate,
        cooldown_steps=max(1, end // 5),
        d_model=1,
    )
    schedule = SCHEDULES.find(task.mask_schedule).make(options)
    return np.asarray(jax.vmap(schedule)(jnp.arange(num_steps)))


def build_evaluator(
    settings: Settings,
    task: Task,
    examples: Sequence[Any],
    decode: DecodeConfig,
    mesh: Mesh,
    num_decoded: int | None = None,
) -> Evaluator:
    """Builds the evaluator of these examples; it decodes `num_decoded`, spread evenly, or all."""
    shards = sharding.row_shards(mesh)
    rows = math.ceil(batch_rows(settings, task) / shards) * shards
    return Evaluator(task, examples, decode, rows, num_decoded)


def build_callbacks(settings: Settings, task: Task, workdir: Path) -> list[Callback]:
    """The callbacks of `train.callbacks` that this process calls."""
    kinds = [CALLBACKS.find(name) for name in settings.resolved.names["train.callbacks"]]
    run = TrainingRun(workdir, settings, task)
    return [kind(run) for kind in kinds if kind.every_process or hosts.is_primary()]

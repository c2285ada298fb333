# SPDX-License-Identifier: Apache-2.0
"""Trains a config in a workdir from its latest checkpoint on; `seeds` trains replicas of it."""

import contextlib
import dataclasses
import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from transformer_jax.checkpoints.step_folder import MisfitError
from transformer_jax.checkpoints.store import Snapshot
from transformer_jax.data.batches.pipeline import StackedBatches, TrainBatches
from transformer_jax.errors import DivergedError, Interrupted, UserError, user_errors
from transformer_jax.logs.records import read_records, with_losses
from transformer_jax.logs.run_log import Console, RunLog, four_digits
from transformer_jax.nn.fused_attention import KernelChoice, record_kernel_choices
from transformer_jax.nn.layers import count_parameters
from transformer_jax.nn.lora import merge_adapters
from transformer_jax.nn.parameters import describe_unlisted
from transformer_jax.parallel import hosts
from transformer_jax.parallel.engines import Engine
from transformer_jax.parallel.first_state import create_state
from transformer_jax.parallel.sharding import bytes_per_device, process_part
from transformer_jax.runs import build, provenance
from transformer_jax.runs.config import different_sizes
from transformer_jax.runs.evaluate import Scores, score_of, selection_metric, validation
from transformer_jax.runs.prepare import Training, open_training, prepare
from transformer_jax.runs.run import Run
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import Modules
from transformer_jax.runs.workdir import METRICS, PROFILE, TOKENIZER, open_for_writing, workdir_path
from transformer_jax.runtime import platform, startup
from transformer_jax.runtime.platform import devices_per_memory, require_memory
from transformer_jax.runtime.preemption import watch_preemption
from transformer_jax.runtime.progress import in_notebook, shown
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.tokenization import load_tokenizers
from transformer_jax.training.diagnostics import Diagnose
from transformer_jax.training.loop import GoodputTimer, Intervals, Loop, Patience, SpikedError
from transformer_jax.training.optimizer import count_frozen, unfinished_decay
from transformer_jax.training.profiling import Profiler, step_bytes, step_products, utilization
from transformer_jax.training.state import FROZEN, OPTIONAL_FIELDS, TrainState

if TYPE_CHECKING:
    from transformer_jax.checkpoints.warm_start import WarmStart

logger = logging.getLogger(__name__)

InitState = jax.stages.Wrapped
"""A seed -> the portable state before the first step."""

_MOST_REWINDS = 10  # to the same checkpoint
_FRAGMENTS = 8
"""Copies of a step's buffers that can be in memory if freed blocks are kept; 7 were seen."""
_KEPT_SHARE = 1 / 2
"""Largest share of the machine's memory that these copies may take. A character GPT of 10.8 million
parameters, batch 64, took 21 GB with kept blocks and 5.9 GB without, in 1.2 times the CPU time."""


def train(
    config: Settings | ConfigDict,
    workdir: str | Path | None = None,
    modules: Modules = (),
    *,
    until: int | None = None,
    progress: bool = True,
) -> Run:
    """Trains a config in a workdir, or resumes from its latest checkpoint.

    In a job of many processes each calls this, with the same workdir, shared or at an address.

    Args:
      workdir: the workdir of the run, which is required; created if it does not exist.
      modules: the user's modules, with components that the config names (`runs.user_modules`).
      until: the step to pause after. The same call with a later step, or none, resumes there; if
        the run is evaluated at this step anyway, it ends as a run that was not paused.
      progress: show the progress on stderr or, in a notebook, in one line (`runtime.progress`).

    Raises:
      UserError: the config, its data or a module cannot be used, the workdir holds another run, or
        the loss is no longer finite.
      Stopped: a SIGTERM or an interrupt (`Interrupted`) came; the state is saved, and the same call
        continues. In a notebook an interrupted run is returned.
    """
    if workdir is None:  # a line in a notebook, where a TypeError is a traceback
        raise UserError('train needs a folder for the run: tj.train(config, "runs/mine")')
    if not in_notebook():
        return train_or_stop(config, workdir, modules, until, progress)
    try:
        return train_or_stop(config, workdir, modules, until, progress)
    except Interrupted as stop:
        from transformer_jax.runs.load import load

        print(_of_cell(stop))
        return load(workdir, modules=modules)
    except KeyboardInterrupt:  # before the first step or after the last one, or a second time
        raise Interrupted(_of_cell(Interrupted())) from None


def _of_cell(stop: Interrupted) -> str:
    return str(stop).replace("the same command", "the same cell")


def train_or_stop(
    config: Settings | ConfigDict,
    workdir: str | Path,
    modules: Modules = (),
    until: int | None = None,
    progress: bool = True,
) -> Run:
    """`train`, but an interrupt is an error in a notebook, too."""
    clock = GoodputTimer()
    startup.keep_freed_memory()
    platform.use_compilation_cache()
    with shown(progress and hosts.is_primary()), open_for_writing(workdir) as handle:
        folder = handle.folder
        training = open_training([config], modules, handle)
        same_bits = platform.reproducible(training.settings.train.reproducible)
        with handle.locked(), training.checkpoints, same_bits:
            hosts.run_on_primary(lambda: prepare(training, folder))
            handle.copy_from_primary(TOKENIZER)
            run = SingleRun(training, folder, [folder], training.open_tasks(folder))
            state = fit(run, clock, until)
            hosts.run_on_primary(lambda: run.log_best(workdir))
        params = merge_adapters(state.model_params)
        return Run(run.settings, folder, run.task, params, int(state.step))


@dataclasses.dataclass(frozen=True)
class SingleRun:
    """A run as the training loop uses it, on all devices of the job.

    Attributes:
      workdir: of the run, or the folder that replicas share.
      folders: where records are written: the workdir, or that of each replica.
      tasks: of the run, or of each replica; those with equal numbers of model and loss share one.
    """

    training: Training
    workdir: Path
    folders: Sequence[Path]
    tasks: Sequence[Task]

    @property
    def settings(self) -> Settings:
        """The settings of the run, or of the first replica."""
        return self.training.settings

    @property
    def task(self) -> Task:
        """The task of the run, or of the first replica."""
        return self.tasks[0]

    @functools.cached_property
    def selected_by(self) -> str:
        """The metric that selects the best checkpoint (`selection_metric`)."""
        return selection_metric(self.settings, self.task)

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine that divides the work among devices."""
        return build.build_engine(self.settings)

    def abstract_state(self, init_state: InitState) -> TrainState:
        """Shapes, dtypes and shardings of the state."""
        return build.abstract_state(self.settings, init_state, self.engine.mesh)

    def open_start(self, shapes: TrainState) -> "WarmStart | None":
        """Opens the parameters that training starts from, for a state of one run or replica; None
        for fresh ones, as those of adapters.

        Raises:
          UserError: they, or frozen ones, are of a model of other sizes; these are named.
        """
        init_from = self.settings.train.init_from
        snapshots = self.training.snapshots
        try:
            for name, tree in shapes.frozen.items():
                if isinstance(snapshots[name], Snapshot):  # not predictions of a teacher
                    snapshots[name].require_fit(tree)
            if not init_from or "base" in snapshots:
                return None
            from transformer_jax.checkpoints.warm_start import WarmStart

            workdir = workdir_path(init_from)
            return WarmStart(shapes.params, workdir, self._has_own_target(workdir))
        except MisfitError as error:
            sizes = different_sizes(self.settings)
            if not sizes:
                raise
            raise UserError(f"train.init_from: {init_from} is of another model: {sizes}") from error

    def _has_own_target(self, start: Path) -> bool:
        """Returns True if the vocabulary of the targets is not one of the run in `start`."""
        target = self.task.tokenizers.sha256.get("target")
        return bool(target) and target not in load_tokenizers(start / TOKENIZER).sha256.values()

    def first_state(
        self, init_state: InitState, abstract: TrainState, start: "WarmStart | None"
    ) -> TrainState:
        """The portable state before the first step, without the frozen parameters."""

        def is_loaded(path: str) -> bool:
            part, _, name = path.partition("/")
            if start is None or part == FROZEN:
                return part == FROZEN
            return part == "opt_state" or (part in ("params", "live") and name in start.replaced)

        state = create_state(init_state, self.settings.seed, abstract, is_loaded)
        return self.with_loaded(state, start.load(state.params)) if start else state

    def with_loaded(self, state: TrainState, params: Any) -> TrainState:
        """The first state with the parameters of another run, and the optimizer's state for them:
        some optimizers keep a copy of the first parameters."""
        optimizer = build.build_optimizer(self.settings)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state.opt_state)
        # A copy, because the step donates the buffers of both.
        init = jax.jit(
            lambda tree: optimizer.init(jax.tree.map(jnp.copy, tree)), out_shardings=shardings
        )
        return state.with_params(params).replace(opt_state=init(params))

    def frozen(self, abstract: Mapping[str, Any]) -> dict[str, Any]:
        """Loads the frozen parameters, of these shapes."""
        snapshots = self.training.snapshots
        return {name: snapshots[name].params(shapes) for name, shapes in abstract.items()}

    def batches(self, rows: int) -> TrainBatches | StackedBatches:
        """The training data in batches of `rows` rows."""
        with user_errors("config.parallel"):
            part = process_part(self.engine.mesh)
        return build.batches_of(self.settings, self.task, self.training.examples, rows, part)

    def log(self, start: int) -> RunLog:
        """Opens the log of metrics from step `start` on; it is closed when training ends."""
        config = self.settings.logging
        if not hosts.is_primary():
            return RunLog([], start_step=start, config=config)
        metric = self.selected_by.removeprefix("-")
        console = Console(start, self.settings.train.num_steps, metric, config.console)
        return RunLog(self.folders, start_step=start, config=config, console=console)

    def validation_records(self, step: int) -> list[list[dict[str, Any]]]:
        """Records of the validation split by earlier starts, up to a step, of each folder."""
        train = dataclasses.asdict(self.settings.train)
        files = [folder / METRICS for folder in self.folders]
        return hosts.run_on_primary(
            lambda: [
                [with_losses(record, train) for record in read_records(path, "valid", step)]
                for path in files
            ]
        )

    def scores(self, records: Sequence[Sequence[Mapping[str, Any]]]) -> list[Any]:
        """The scores of `validation_records`."""
        return [score_of(record, self.selected_by) for record in records[0]]

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        """A function from the number of updates done to the learning rate that is logged."""
        return schedule

    def diagnostics(self) -> Diagnose:
        """The diagnostics of training."""
        return build.build_diagnostics(self.settings, self.task, self.engine)

    def validation(self) -> Callable[[int, TrainState], Scores]:
        """A function (step, `TrainState.evaluated`) -> scores; UserError if the split cannot be
        evaluated."""
        evaluate = validation(self.settings, self.task, self.engine.mesh)
        return lambda step, state: evaluate(step, state, self.workdir)

    def log_best(self, workdir: str | Path) -> None:
        """Logs the best validation score and where the run is."""
        name = self.selected_by
        (records,) = self.validation_records(self.settings.train.num_steps)
        finite = [record for record in records if math.isfinite(score_of(record, name))]
        if not finite:
            return
        record = max(finite, key=lambda record: score_of(record, name))
        score = four_digits(abs(score_of(record, name)))
        best = f"{name.removeprefix('-')} {score} at step {record['step']}"
        if "num_all_examples" in record and not name.endswith("loss"):
            best += f", on {record['num_examples']:,} of {record['num_all_examples']:,} examples"
        logger.info("best %s; the run is in %s", best, workdir)


def fit(run: SingleRun, clock: GoodputTimer, until: int | None = None) -> TrainState:
    """Trains from the latest checkpoint, if there is one; returns the portable state.

    If a saved step was due to be evaluated and its evaluation did not finish, it is evaluated
    before the next step is trained.

    Args:
      clock: started when the command began.
      until: the step to pause after; None: the last one.

    Raises:
      DivergedError: as `Loop.run`, or training went back to one checkpoint too often.
      Stopped: as `Loop.run`.
    """
    settings = run.settings
    task = run.task
    checkpoints = run.training.checkpoints
    engine = run.engine
    schedule, train_step, init_state = build.build_training(settings, task, engine)
    rows = build.batch_rows(settings, task, engine.row_shards)
    batches = run.batches(rows)
    abstract = run.abstract_state(init_state)
    batch = batch_shapes(build.training_lengths(task), rows)
    single = jax.eval_shape(init_state, settings.seed)  # of one replica, or of the run
    model = step_products(task, single, batch, settings.optimizer.frozen)
    parts = build.micro_batches(settings, task, engine.row_shards)
    require_room(settings, abstract, engine, model.largest // parts)
    fixed = count_frozen(settings.optimizer.frozen, single.params)
    frozen = count_parameters(single.frozen) + fixed
    beside = f", beside {frozen:,} that stay as they are" if frozen else ""
    trained = f"{count_parameters(single.params) - fixed:,}"
    logger.info("training %s parameters%s", trained, beside)
    point = _latest_point(run, abstract)
    if point is not None:
        if _is_finished(run, point, until):
            return point.take_state()
        batches.set_state(point.data_state)
    start_from = run.open_start(single) if point is None else None
    unlisted = describe_unlisted(single.params)
    decay = unfinished_decay(settings.optimizer, settings.model.d_model, settings.train.num_steps)
    for message in filter(None, (unlisted, decay)):
        logger.warning(message)
    validate = run.validation()  # before any step: it refuses a split it cannot evaluate
    logger.info("compiling the training step")
    start = time.perf_counter()
    with record_kernel_choices() as attention:
        step = engine.compile(train_step, abstract, batch)
    _log_attention(settings.model.attention, attention)
    # The step is compiled in the background, while the first state and the first batches are made.
    first_point = functools.partial(_first_point, run, init_state, abstract, start_from)
    point = point or first_point()
    batches.start()
    clock.attribute_rest("starting")
    with clock.measure("compiling"):
        buffers = step_bytes(step)
        checkpoints.provenance |= provenance.machine_provenance()
        checkpoints.provenance[provenance.STEP] = step.fingerprint.result()
        step_utilization = utilization(
            engine.num_replicas * model.flops, settings.model.dtype, step, engine.mesh
        )
    logger.info("compiled in %.1f s", time.perf_counter() - start)
    if provenance.STEP in point.saved_with:
        bits = provenance.compare_bits(checkpoints.provenance, point.saved_with)
        logger.info("%s: %s", run.workdir, bits)
    limit_kept_memory(buffers)
    make_loop = functools.partial(
        Loop,
        train_step=step,
        to_portable=engine.to_portable,
        batches=batches,
        checkpoints=checkpoints,
        evaluate=validate,
        learning_rate=run.learning_rate(jax.jit(schedule)),
        utilization=step_utilization,
        intervals=_intervals(settings),
        diagnostics=run.diagnostics(),
        timer=clock,
        callbacks=build.build_callbacks(settings, task, run.workdir),
        rewinds=settings.train.on_spike == "rewind",
        step_bytes=buffers,
    )
    rewinds: Counter[int] = Counter()
    with contextlib.closing(batches), watch_preemption(settings.parallel.preemption_notice):
        while True:
            try:
                return _train_from(run, make_loop, until, point)
            except SpikedError as error:
                spiked = error
            with clock.measure("rewinding"):
                checkpoints.wait()
                point = _latest_point(run, abstract) or first_point()
            rewinds[point.step] += 1
            _check_rewinds(rewinds, point.step, spiked)


def require_room(settings: Settings, state: TrainState, engine: Engine, largest: int) -> None:
    """Raises UserError if a training step cannot fit into memory, before any is allocated.

    `largest` is the bytes of the largest array in the forward pass of a micro-batch, on all devices
    together.
    """
    gradient = bytes_per_device(state.params)
    activation = largest * engine.num_replicas // engine.mesh.size
    require_memory(
        devices_per_memory() * (bytes_per_device(state) + gradient + activation),
        f"config: {count_parameters(state.params):,} parameters, with gradients, optimizer and "
        f"train.tokens_per_batch {settings.train.tokens_per_batch},",
    )


@dataclasses.dataclass
class _ResumePoint:
    """A portable state to train from, after `step` updates.

    It is evaluated first if an earlier start did not finish its evaluation. Without the state of
    the data iterator, data are read from the beginning.
    """

    step: int
    state: TrainState | None
    patience: Patience
    data_state: Any = None
    evaluate_first: bool = False
    saved_with: provenance.Provenance = dataclasses.field(default_factory=dict)

    def take_state(self) -> TrainState:
        """Returns the state and drops it here: an engine may replace it by its own copy."""
        state = self.state
        self.state = None
        assert state is not None
        return state


def _first_point(
    run: SingleRun, init_state: InitState, abstract: TrainState, start: "WarmStart | None"
) -> _ResumePoint:
    """The point before the first step."""
    state = run.first_state(init_state, abstract, start)
    state = state.replace(frozen=run.frozen(abstract.frozen))
    return _ResumePoint(0, state, _patience(run.settings))


def _latest_point(run: SingleRun, abstract: TrainState) -> _ResumePoint | None:
    """The latest checkpoint, if there is one; UserError if other data or tokenizers were used."""
    checkpoints = run.training.checkpoints
    if checkpoints.latest_step() is None:
        return None
    settings = run.settings
    snapshot = checkpoints.snapshot()
    provenance.check_provenance(checkpoints.provenance, snapshot.provenance, run.workdir)
    state = snapshot.state(abstract.saved, OPTIONAL_FIELDS)
    step = snapshot.step
    records = run.validation_records(step)
    is_due = _intervals(settings).is_evaluated(step, settings.train.num_steps)
    is_validated = all(any(record["step"] == step for record in of_run) for of_run in records)
    return _ResumePoint(
        step,
        state.replace(frozen=run.frozen(abstract.frozen)),
        _patience(settings, run.scores(records)),
        snapshot.data_state,
        evaluate_first=is_due and not is_validated,
        saved_with=snapshot.provenance,
    )


def _is_finished(run: SingleRun, point: _ResumePoint, until: int | None) -> bool:
    """Returns True if nothing is left to train; logs that, and where training is resumed."""
    step = point.step
    logger.info("%s continues from step %d", run.workdir, step)
    if point.patience.is_exhausted:
        end = f"has ended at step {step}, after {point.patience}; raise eval.patience for more"
    elif point.evaluate_first:
        return False
    elif step >= run.settings.train.num_steps:
        too = " and optimizer.decay_steps" if run.settings.optimizer.decay_steps else ""
        end = f"has finished its {step} steps; raise train.num_steps{too} for more"
    elif until is not None and step >= until:
        end = f"is paused at step {step}"
    else:
        return False
    logger.info("%s %s", run.workdir, end)
    return True


def limit_kept_memory(buffers: int) -> None:
    """Returns the memory that compilation used on a CPU; also large freed blocks, if those that are
    kept for the next step (`keep_freed_memory`) could take more than half of the memory."""
    if platform.is_cpu():
        startup.return_unused_memory()
        usable = platform.usable_memory() or 0
        if _FRAGMENTS * buffers > _KEPT_SHARE * usable:
            startup.return_large_blocks()


def _train_from(
    run: SingleRun, make_loop: Callable[..., Loop], until: int | None, point: _ResumePoint
) -> TrainState:
    """Runs the loop from a point; returns the portable state after the last step, or `until`."""
    start = point.step
    settings = run.settings
    with run.log(start) as log:
        profiler = Profiler(run.workdir / PROFILE, start + 1, settings.logging.profile_steps)
        loop = make_loop(log=log, profiler=profiler, patience=point.patience)
        state = run.engine.from_portable(point.take_state())
        num_steps = settings.train.num_steps
        state = loop.run(state, start, num_steps, until=until, evaluate_start=point.evaluate_first)
        return run.engine.to_portable(state)


def _check_rewinds(rewinds: Counter[int], step: int, spiked: SpikedError) -> None:
    """Logs a return to a step; raises DivergedError if training went back there too often."""
    if rewinds[step] > _MOST_REWINDS:
        raise DivergedError(
            f"{spiked}, for the {rewinds[step]}th time after step {step}, each time with other "
            "data: in a new workdir, lower optimizer.learning_rate or raise train.spike_factor"
        )
    message = "%s; training goes back to step %d and continues with the data that comes next"
    logger.warning(message, spiked, step)


def _log_attention(requested: str, choices: Sequence[KernelChoice]) -> None:
    """Logs the attention kernel of the step and why; UserError if it is not the requested one."""
    for choice in choices:
        if requested not in ("auto", choice.name):
            raise UserError(
                f"config.model.attention is {requested!r}, but {choice.reason}; set it to auto or "
                "plain"
            )
        if choice.reason or choice.kernel is not None:
            logger.info("attention: %s", choice)


def _patience(settings: Settings, scores: Sequence[Any] = ()) -> Patience:
    optimizer = settings.optimizer
    return Patience(
        settings.eval.patience, optimizer.plateau_patience, optimizer.plateau_factor, scores
    )


def _intervals(settings: Settings) -> Intervals:
    return Intervals(
        log=settings.logging.every_steps,
        evaluate=settings.eval.every_steps,
        save=settings.checkpoint.every_steps,
        watch=settings.logging.watch_steps,
    )

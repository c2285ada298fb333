"""The training loop of a run, put together from its settings."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.checkpoints.warm_start import warm_start
from transformer_jax.data.batches.pipeline import TrainBatches, train_batches
from transformer_jax.data.sources import open_split
from transformer_jax.logs.run_log import NoLog, RunLog
from transformer_jax.parallel import hosts
from transformer_jax.parallel.engines import Engine, create_state
from transformer_jax.runs import build
from transformer_jax.runs.config import Settings
from transformer_jax.tasks.interface import Task
from transformer_jax.training.evaluation import write_predictions
from transformer_jax.training.loop import Every, Loop
from transformer_jax.training.profiling import Profiler, step_flops, utilization
from transformer_jax.training.state import TrainState

logger = logging.getLogger(__name__)


class Plan(Protocol):
    """What is to be trained: one run, or replicas of it.

    Attributes:
      settings: of the run; of replicas, what they have in common.
      workdir: where checkpoints and profiles go.
      task: with its model.
      examples: of the training split.
      engine: how the devices share the work.
    """

    settings: Settings
    workdir: Path
    task: Task
    examples: Sequence[Any]
    engine: Any

    def abstract_state(self, init_state: Callable[[int], TrainState]) -> TrainState:
        """Shapes, types and shardings of the state."""

    def first_state(self, init_state: Callable[[int], TrainState], abstract: Any) -> TrainState:
        """The portable state before the first step."""

    def batches(self, rows: int) -> TrainBatches:
        """The training data."""

    def log(self, start: int) -> Any:
        """Where metrics go, from step `start` on."""

    def learning_rate(self, schedule: Callable[[int], Any]) -> Callable[[int], Any]:
        """What is reported of the schedule."""

    def validation(self) -> Callable[[int, Any], tuple[dict[str, Any], float]]:
        """(step, params) -> metrics of the validation split, and the one that finds the best."""


def train_plan(plan: Plan, checkpoints: Checkpoints) -> TrainState:
    """Trains, from the last checkpoint if there is one; returns the portable state."""
    settings, task, engine = plan.settings, plan.task, plan.engine
    schedule, train_step, init_state = build.build_training(settings, task, engine)
    rows = build.batch_rows(settings, task, engine.row_shards)
    batches = plan.batches(rows)
    abstract = plan.abstract_state(init_state)
    batch = build.batch_shapes(task.lengths, rows)
    compile_step = partial(engine.compile, train_step, abstract, batch)
    num_steps = settings.train.num_steps
    if checkpoints.latest_step() is None:
        start, step = 0, compile_step()  # which goes on beside what follows
        state = plan.first_state(init_state, abstract)
    else:
        start, state, data_state = checkpoints.restore("latest", abstract)
        batches.set_state(data_state)
        logger.info("%s goes on from step %d", plan.workdir, start)
        if start >= num_steps:
            logger.info(
                "%s has finished its %d steps; raise train.num_steps for more", plan.workdir, start
            )
            return state
        step = compile_step()
    batches.start()
    params = jax.eval_shape(init_state, settings.seed).params
    flops = engine.num_replicas * step_flops(task, params, batch)
    with plan.log(start) as log:
        loop = Loop(
            train_step=step,
            portable=engine.portable,
            batches=batches,
            log=log,
            checkpoints=checkpoints,
            evaluate=plan.validation(),
            learning_rate=plan.learning_rate(jax.jit(schedule)),
            utilization=utilization(flops, settings.model.dtype, step),
            profiler=Profiler(plan.workdir / "profile", start + 1, settings.logging.profile_steps),
            every=Every(
                log=settings.logging.every_steps,
                evaluate=settings.eval.every_steps,
                save=settings.checkpoint.every_steps,
            ),
        )
        return engine.portable(loop.run(engine.adopt(state), start, num_steps))


@dataclasses.dataclass(frozen=True)
class OneRun:
    """One run, on all devices of the job."""

    settings: Settings
    workdir: Path
    task: Task
    examples: Sequence[Any]

    @cached_property
    def engine(self) -> Engine:
        """The one that the config asks for."""
        return build.build_engine(self.settings)

    def abstract_state(self, init_state) -> TrainState:
        """As `Plan.abstract_state`."""
        return build.abstract_state(self.settings, init_state, self.engine.mesh)

    def first_state(self, init_state, abstract) -> TrainState:
        """As `Plan.first_state`; with the parameters of the run that this one starts from."""
        state = create_state(init_state, self.settings.seed, abstract)
        return started(state, self.settings)

    def batches(self, rows: int) -> TrainBatches:
        """As `Plan.batches`; this process's rows."""
        shard = (jax.process_index(), jax.process_count())
        return batches_of(self.settings, self.task, self.examples, rows, shard)

    def log(self, start: int) -> RunLog | NoLog:
        """As `Plan.log`; of many processes, the first one has it."""
        if not hosts.is_primary():
            return NoLog()
        steps, project = self.settings.train.num_steps, self.settings.logging.wandb
        return RunLog(self.workdir, start_step=start, num_steps=steps, wandb=project)

    def learning_rate(self, schedule):
        """The schedule's own."""
        return schedule

    def validation(self):
        """As `Plan.validation`."""
        evaluate = validation(self.settings, self.task, self.engine.mesh)
        return lambda step, params: evaluate(step, params, self.workdir)


def batches_of(settings, task, examples, rows, shard=(0, 1)) -> TrainBatches:
    """The training data of settings, in the order of their seed."""
    return train_batches(
        task.prepare(examples, training=True),
        task.preprocess,
        lengths=task.lengths,
        rows=rows,
        seed=settings.order_seed,
        shard=shard,
    )


def started(state: TrainState, settings: Settings) -> TrainState:
    """A fresh state with the parameters of the run that `train.init_from` names, if any."""
    if not settings.train.init_from:
        return state
    return state.started_from(warm_start(state.params, Path(settings.train.init_from)))


def validation(settings: Settings, task: Task, mesh: Mesh):
    """(step, params, workdir) -> metrics of the validation split, and its score; outputs are kept
    in the workdir."""
    greedy = dataclasses.replace(settings.decode, beam_size=1, num_outputs=1)
    examples = open_split(settings.data, "valid")
    evaluator = build.build_evaluator(
        settings, task, examples, greedy, mesh, settings.eval.num_examples
    )

    def evaluate(step: int, params: Any, workdir: Path) -> tuple[dict[str, Any], float]:
        metrics, outputs = evaluator(params)
        path = workdir / "predictions" / f"valid-{step}.jsonl"
        hosts.from_primary(lambda: write_predictions(path, evaluator.decoded, outputs))
        name = task.best_by.removeprefix("-")
        return metrics, -metrics[name] if name != task.best_by else metrics[name]

    return evaluate

"""Training a config in a workdir, and loading the run that a workdir holds."""

import dataclasses
import logging
import shutil
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from transformer_jax import build
from transformer_jax.configuration import (
    Settings,
    check_same_run,
    load_json,
    read_settings,
    save_json,
)
from transformer_jax.data.pipeline import train_batches
from transformer_jax.data.sources import open_split
from transformer_jax.errors import UserError
from transformer_jax.host_memory import keep_freed_memory
from transformer_jax.parallel import hosts, rules
from transformer_jax.parallel.compilation_cache import use_compilation_cache
from transformer_jax.parallel.engines import create_state
from transformer_jax.run import Run
from transformer_jax.tasks.interface import Task
from transformer_jax.tokenization import load_tokenizers
from transformer_jax.training.checkpoints import Checkpoints
from transformer_jax.training.evaluation import write_predictions
from transformer_jax.training.logs import NoLog, RunLog
from transformer_jax.training.loop import Loop
from transformer_jax.training.profiling import Profiler
from transformer_jax.training.sole_writer import sole_writer
from transformer_jax.training.warm_start import warm_start

logger = logging.getLogger(__name__)


def train(config: ConfigDict, workdir: str | Path) -> Run:
    """Trains a config in a workdir, or goes on from its last checkpoint.

    In a job of many processes each calls this, with a workdir that they share.

    Raises:
      UserError: the config or its data cannot be used, the workdir holds another run, or the loss
        is no longer finite.
    """
    keep_freed_memory()
    use_compilation_cache()
    settings, workdir = read_settings(config), _directory(workdir)
    examples = open_split(settings.data, "train")
    checkpoints = Checkpoints(workdir / "checkpoints", settings.checkpoint)
    with sole_writer(workdir), checkpoints:
        hosts.from_primary(lambda: _prepare(config, workdir, checkpoints, examples))
        tokenizers = load_tokenizers(workdir / "tokenizer")
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
        state = _train(settings, workdir, task, examples, checkpoints)
    return Run(config, workdir, task, state.params, int(state.step))


def _directory(workdir: str | Path) -> Path:
    if "://" in str(workdir):
        raise UserError(f"workdir {workdir} is no directory; mount the bucket as a file system")
    return Path(workdir)


def _prepare(config: ConfigDict, workdir: Path, checkpoints: Checkpoints, examples) -> None:
    """Puts config and tokenizer into the workdir, unless it holds another run."""
    kept, tokenizer = workdir / "config.json", workdir / "tokenizer"
    if checkpoints.latest_step() is not None:
        check_same_run(config, load_json(kept), workdir)
    else:
        # Nothing to go on from: what is there is of a start that failed, with any config.
        shutil.rmtree(tokenizer, ignore_errors=True)
    build.build_tokenizers(read_settings(config), tokenizer, examples)
    save_json(config, kept)


def _train(settings: Settings, workdir: Path, task: Task, examples, checkpoints: Checkpoints):
    """Builds and runs the loop; returns the portable state."""
    engine = build.build_engine(settings)
    schedule, train_step, init_state = build.build_training(settings, task, engine)
    rows = build.batch_rows(settings, task, engine.mesh)
    batches = train_batches(
        task.prepare(examples, training=True),
        task.preprocess,
        lengths=task.lengths,
        rows=rows,
        seed=settings.seed,
        shard=(jax.process_index(), jax.process_count()),
    )
    start, num_steps = 0, settings.train.num_steps
    abstract = build.abstract_state(settings, init_state, engine.mesh)
    if checkpoints.latest_step() is None:
        state = create_state(init_state, settings.seed, abstract)
        if settings.train.init_from:
            state = state.started_from(warm_start(state.params, Path(settings.train.init_from)))
    else:
        start, state, data_state = checkpoints.restore("latest", abstract)
        batches.set_state(data_state)
        logger.info("%s goes on from step %d", workdir, start)
    if start >= num_steps:
        logger.info("%s has finished its %d steps; raise train.num_steps for more", workdir, start)
        return state
    step = engine.compile(train_step, abstract, build.batch_shapes(task.lengths, rows))
    with _log(settings, workdir, start) as log:
        loop = Loop(
            train_step=step,
            portable=engine.portable,
            batches=batches,
            log=log,
            checkpoints=checkpoints,
            evaluate=_validation(settings, task, workdir, engine.mesh),
            learning_rate=schedule,
            utilization=build.utilization(settings, task, rows, step),
            profiler=Profiler(workdir / "profile", start + 1, settings.logging.profile_steps),
            log_every=settings.logging.every_steps,
            evaluate_every=settings.eval.every_steps,
            save_every=settings.checkpoint.every_steps,
        )
        return engine.portable(loop.run(engine.adopt(state), start, num_steps))


def _log(settings: Settings, workdir: Path, start: int) -> RunLog | NoLog:
    if not hosts.is_primary():
        return NoLog()
    steps, project = settings.train.num_steps, settings.logging.wandb
    return RunLog(workdir, start_step=start, num_steps=steps, wandb=project)


def _validation(settings: Settings, task: Task, workdir: Path, mesh: Mesh):
    """(step, params) -> figures of the validation split, and the one that finds the best."""
    greedy = dataclasses.replace(settings.decode, beam_size=1, num_outputs=1)
    examples = open_split(settings.data, "valid")
    evaluator = build.build_evaluator(
        settings, task, examples, greedy, mesh, settings.eval.num_examples
    )

    def evaluate(step: int, params: Any) -> tuple[dict[str, Any], float]:
        figures, outputs = evaluator(params)
        path = workdir / "predictions" / f"valid-{step}.jsonl"
        hosts.from_primary(lambda: write_predictions(path, evaluator.decoded, outputs))
        name = task.best_by.removeprefix("-")
        return figures, -figures[name] if name != task.best_by else figures[name]

    return evaluate


def load(workdir: str | Path, checkpoint: str | int = "latest", average: int | None = None) -> Run:
    """Loads a run: nothing in the workdir is code, and nothing of it is executed.

    Args:
      workdir: of a run with a checkpoint.
      checkpoint: "latest", "best" or a step.
      average: the mean of so many snapshots of the parameters, up to that checkpoint.

    Raises:
      UserError: there is no such run or checkpoint, or it is damaged.
    """
    keep_freed_memory()
    use_compilation_cache()
    workdir = _directory(workdir)
    config = load_json(workdir / "config.json")
    settings = read_settings(config)
    tokenizers = load_tokenizers(workdir / "tokenizer")
    task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
    params = jax.eval_shape(task.init, jax.random.key(0))
    params = rules.shard(params, build.mesh_for_use(settings))
    checkpoints = Checkpoints(workdir / "checkpoints", settings.checkpoint)
    if average is None:
        step, params = checkpoints.restore_params(checkpoint, params)
    else:
        steps, params = checkpoints.average(average, checkpoint, params)
        step = steps[0]
    return Run(config, workdir, task, params, step)

# SPDX-License-Identifier: Apache-2.0
"""Oracles of training on one device: each compares two ways to compute the same steps."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.parallel.engines import create_state
from transformer_jax.parallel.replicas import make_replica_engine
from transformer_jax.parallel.scan_engine import ScanEngine
from transformer_jax.parallel.sharding import ParallelConfig
from transformer_jax.runs import build
from transformer_jax.runs.seeds import check_alike
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.training.state import OPTIONAL_FIELDS, TrainState
from transformer_jax.verify.outcomes import BITS, Comparison, compare_trees
from transformer_jax.verify.subject import ROWS, Subject, first_gradients, place

_STEPS, _SAVED = 4, 2


def scanned(subject: Subject) -> Comparison:
    """Layers in a scan give the gradients of unrolled layers."""
    scans = subject.but(model__scan_layers=True)
    assert isinstance(scans.engine, ScanEngine)
    return compare_trees(first_gradients(scans, scans.engine), subject.gradients)


def rematerialized(subject: Subject, remat: str) -> Comparison:
    """Activations that the backward pass computes again give the same gradients, with dropout."""
    saved = subject.with_dropout
    again = saved.but(train__remat=remat)
    return compare_trees(first_gradients(again, again.engine), saved.gradients)


def accumulated(subject: Subject) -> Comparison:
    """Two micro-batches give the gradients of one batch."""
    parts = subject.but(train__accumulation_steps=2)
    return compare_trees(first_gradients(parts, parts.engine), subject.gradients)


def repeated(subject: Subject) -> Comparison:
    """A step that is built, traced and compiled again gives the same bits."""
    first = subject.with_dropout
    again = Subject(first.config)  # with a state of its own
    return compare_trees(first_gradients(again, again.engine), first.gradients, BITS)


def resumed(subject: Subject) -> Comparison:
    """Training from a checkpoint continues as if it had not stopped, bit for bit."""
    subject = subject.with_dropout
    whole = _train(subject, 0, _STEPS, subject.state)
    half = _train(subject.but(), 0, _SAVED, subject.state)
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(subject.settings.checkpoint, asynchronous=False)
        with Checkpoints(Path(folder), config) as checkpoints:
            checkpoints.save(_SAVED, jax.tree.map(jax.numpy.asarray, half.saved), {})
        snapshot = Checkpoints(Path(folder), config).open()
        shapes = jax.eval_shape(lambda: half.saved)
        restored = snapshot.state(shapes, OPTIONAL_FIELDS)
        state = jax.device_get(restored).replace(frozen=half.frozen)
    found = _train(subject.but(), _SAVED, _STEPS, state)
    return compare_trees(found, whole, BITS)


def _train(subject: Subject, start: int, end: int, state: TrainState) -> TrainState:
    """The state after steps `start` to `end`, all built anew; batches differ in their order."""
    engine, task = subject.engine, subject.task
    _, train_step, init_state = build.build_training(subject.settings, task, engine)
    abstract = build.abstract_state(subject.settings, init_state, engine.mesh)
    step = engine.compile(train_step, abstract, batch_shapes(task.lengths, ROWS))
    placed = engine.from_portable(place(state, abstract))
    for number in range(start, end):
        batch = {name: np.roll(x, number, axis=0) for name, x in subject.batch.items()}
        placed, _ = step(placed, batch)
    trained: TrainState = jax.device_get(engine.to_portable(placed))
    return trained


def seeds(subject: Subject) -> Comparison:
    """Two seeds in one program have the parameters and gradients that each has by itself."""
    members = [subject.but(seed=seed) for seed in (0, 1)]
    check_alike({f"seed_{i}": one.settings for i, one in enumerate(members)})
    engine = make_replica_engine(ParallelConfig(data=1), [1.0, 1.0], same_batch=True)
    task, settings = subject.task, subject.settings
    _, _, init_state = build.build_training(settings, task, engine)
    update = build.build_update(settings, task, engine)
    batch = batch_shapes(task.lengths, ROWS)

    def step(state: TrainState, batch: Any, rate: Any = None) -> Any:
        return state.replace(params=update(state, batch).grads), {}

    def run(engine: Any, seed: Any, init: Any) -> Any:
        abstract = jax.eval_shape(init, seed)
        sharding = jax.sharding.NamedSharding(engine.mesh, jax.sharding.PartitionSpec())
        abstract = jax.tree.map(lambda x: x.update(sharding=sharding), abstract)
        state = create_state(init, seed, abstract)
        params = jax.device_get(state.params)
        gradients, _ = engine.compile(step, abstract, batch)(state, subject.batch)
        return {"parameters": params, "gradients": jax.device_get(gradients.params)}

    together = run(engine, np.array([0, 1]), jax.vmap(init_state))
    own = subject.engine
    update = build.build_update(settings, task, own)
    _, _, init_state = build.build_training(settings, task, own)
    apart = [run(own, seed, init_state) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *apart)
    return compare_trees(together, stacked)

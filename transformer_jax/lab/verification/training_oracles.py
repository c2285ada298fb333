# SPDX-License-Identifier: Apache-2.0
"""Oracles of training: each compares two ways to compute the same steps, to read the same data, or
to store the same weights."""

import contextlib
import dataclasses
import hashlib
import json
import re
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.checkpoints.step_folder import named_leaves
from transformer_jax.checkpoints.store import Checkpoints
from transformer_jax.data.batches.pipeline import TrainBatches
from transformer_jax.data.sources import find_sets, open_split
from transformer_jax.interop import weights
from transformer_jax.interop.config_json import tokenizer_keys
from transformer_jax.interop.family_match import match_family
from transformer_jax.lab.verification.outcomes import BITS, Comparison, DoesNotApplyError
from transformer_jax.lab.verification.subject import LABELS, ROW_LENGTHS, ROWS, Subject
from transformer_jax.models.classifier import body_config
from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.nn.transformer import rematerialized_layers
from transformer_jax.parallel.engines import Engine, ScanEngine, make_replica_engine
from transformer_jax.parallel.sharding import AXIS_NAMES, DATA, ParallelConfig
from transformer_jax.runs import build
from transformer_jax.runs.config import override
from transformer_jax.runs.prepare import build_tokenizers
from transformer_jax.runs.seeds import check_alike
from transformer_jax.runs.settings import Settings
from transformer_jax.runs.user_modules import user_components
from transformer_jax.runs.workdir import TOKENIZER
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.tokenization import DEFAULT_SPECIALS, Labels, Tokenizers
from transformer_jax.training.state import OPTIONAL_FIELDS, TrainState

DEVICES = 2
"""Devices of a divided step."""
_STEPS = 4
_SAVED = 2  # step of the checkpoint
_ROUNDING = 0.01  # larger differences are none of rounding
_OTHER_ORDER = 10  # what another order of sums may change, in units of the rounding to float64
_RANDOM = re.compile("random_bits|threefry|rng_bit_generator")  # in a printed program
_REMAT = ("checkpoint", "remat2")  # names of the primitive in releases of jax
_LENGTHS = dict.fromkeys((*ROW_LENGTHS, "model.max_length"), 128)  # tokens of a row
_EXAMPLES = 200  # compared, from the first to the last of the set
_BATCHES = 3  # before and after the iterator is restored


def _compare(subject: Subject, computed: Any, expected: Any) -> Comparison:
    """Compares gradients. Where rounding in float32 changes those of the model by more than usual,
    as near a division by 0, another order of sums may do so too."""
    comparison = Comparison.of_trees(computed, expected)
    if not comparison.tolerance < comparison.relative < _ROUNDING:
        return comparison
    tolerance = max(comparison.tolerance, _OTHER_ORDER * subject.rounding.relative)
    return dataclasses.replace(comparison, tolerance=tolerance)


def scanned(subject: Subject) -> Comparison:
    """Layers in a scan give the gradients of unrolled layers."""
    if not getattr(subject.task.model, "scannable", True):
        raise DoesNotApplyError("the architecture declares that its layers cannot be scanned")
    scans = subject.but(model__scan_layers=True)
    assert isinstance(scans.engine, ScanEngine)
    return _compare(subject, scans.gradients, subject.gradients)


def rematerialized(subject: Subject, remat: str) -> Comparison:
    """Activations that the backward pass computes again give the same gradients, with dropout."""
    saved = subject.with_dropout
    with rematerialized_layers(remat):
        loss = jax.make_jaxpr(lambda params: saved.loss(params))(saved.params)
    if not any(equation.primitive.name in _REMAT for equation in loss.eqns):
        raise DoesNotApplyError("no layer of this architecture is one that train.remat knows")
    again = saved.but(train__remat=remat)
    return _compare(subject, again.drawn_gradients, saved.drawn_gradients)


def accumulated(subject: Subject) -> Comparison:
    """Two micro-batches give the gradients of one batch."""
    if build.task_kind(subject.settings).batch_dependent:
        raise DoesNotApplyError("the task declares that its loss depends on the batch")
    parts = subject.but(train__accumulation_steps=2)
    return _compare(subject, parts.gradients, subject.gradients)


def divided(subject: Subject, engine: str, axis: str) -> Comparison:
    """Two devices along an axis of the mesh give the gradients of one, with "pmap" or "jit"."""
    sizes = {f"parallel__{name}": DEVICES if name == axis else 1 for name in AXIS_NAMES}
    apart = subject.but(parallel__engine=engine, **sizes)
    engine_of_two = build.build_engine(apart.settings, jax.devices()[:DEVICES])
    return _compare(subject, apart.first_gradients(engine_of_two), subject.gradients)


def repeated(subject: Subject) -> Comparison:
    """A step that is built, traced and compiled again gives the same bits."""
    first = subject.with_dropout
    again = Subject(first.settings)  # with a state of its own
    return Comparison.of_trees(again.drawn_gradients, first.drawn_gradients, BITS)


def randomness(subject: Subject) -> Comparison:
    """What a component draws by itself: the same key gives the same bits, another step others."""
    keys = [jax.random.key(number) for number in range(2)]
    if not _RANDOM.search(str(jax.make_jaxpr(subject.loss)(subject.params, keys[0]))):
        raise DoesNotApplyError("it draws nothing by itself")
    # Compiled anew each time, so that what is drawn in Python while tracing differs.
    first, again, other = (
        jax.jit(lambda params, key: subject.loss(params, key))(subject.params, key)
        for key in (keys[0], *keys)
    )
    if again == first == other:
        return Comparison(np.inf, np.inf, "the same bits with the key of another step", BITS)
    return Comparison.of_trees(again, first, BITS)


def resumed(subject: Subject) -> Comparison:
    """Training from a checkpoint continues as if it had not stopped, bit for bit.

    The second part is built, traced and compiled again, as in another process.
    """
    subject = subject.with_dropout
    batches = [
        {name: np.roll(x, number, axis=0) for name, x in subject.batch.items()}
        for number in range(_STEPS)
    ]
    train = _compile_training(subject)
    whole, _ = train(subject.state, batches)
    half, _ = train(subject.state, batches[:_SAVED])
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(subject.settings.checkpoint, asynchronous=False)
        with Checkpoints(Path(folder), config) as checkpoints:
            checkpoints.save(_SAVED, jax.tree.map(jnp.asarray, half.saved), {})
        snapshot = Checkpoints(Path(folder), config).snapshot()
        restored = snapshot.state(jax.eval_shape(lambda: half.saved), OPTIONAL_FIELDS)
        state = jax.device_get(restored).replace(frozen=half.frozen)
    continued, _ = _compile_training(subject.but())(state, batches[_SAVED:])
    return Comparison.of_trees(continued, whole, BITS)


def _compile_training(subject: Subject) -> Callable[..., tuple[TrainState, Any]]:
    _, train_step, _ = build.build_training(subject.settings, subject.task, subject.engine)
    return subject.compile_step(subject.engine, train_step)


def seeds(subject: Subject) -> Comparison:
    """Two seeds in one program have the parameters and gradients that each has by itself."""
    subject = subject.with_dropout
    numbers = np.arange(2)
    check_alike({f"seed_{i}": subject.but(seed=int(i)).settings for i in numbers})
    engine = make_replica_engine(ParallelConfig(data=1), len(numbers), same_batch=True)
    (together,) = _from_seeds(subject, engine, [numbers])
    apart = _from_seeds(subject, subject.engine, list(numbers))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *apart)
    return _compare(subject, together, stacked)


def _from_seeds(subject: Subject, engine: Engine, seeds: Sequence[Any]) -> list[dict[str, Any]]:
    """Initial parameters, and the gradients of the first step, of each seed, or array of seeds."""
    task = subject.task
    settings = subject.settings
    several = np.ndim(seeds[0]) > 0
    _, _, init_state = build.build_training(settings, task, engine)
    init = jax.jit(jax.vmap(init_state) if several else init_state)
    frozen = subject.state.frozen
    states = [jax.device_get(init(seed)).replace(frozen=frozen) for seed in seeds]
    shared = NamedSharding(engine.mesh, PartitionSpec())
    by_replica = NamedSharding(engine.mesh, PartitionSpec(DATA))
    shardings = jax.tree.map(lambda _: by_replica if several else shared, states[0])
    # The frozen trees have no axis of replicas: all read the same.
    shardings = shardings.replace(frozen=jax.tree.map(lambda _: shared, frozen))
    placed = [jax.device_put(state, shardings) for state in states]
    update = build.build_update(settings, task, engine)

    def step(state: TrainState, batch: Any, numbers: Any = None) -> Any:
        return state.replace(params=update(state, batch).grads), {}

    compiled = engine.compile(step, placed[0], batch_shapes(task.lengths, ROWS))
    after = [compiled(state, subject.batch)[0] for state in placed]
    return [
        {"parameters": state.params, "gradients": jax.device_get(with_grads.params)}
        for state, with_grads in zip(states, after, strict=True)
    ]


def exported(subject: Subject) -> Comparison:
    """Weights that are exported and imported again are the same.

    Raises:
      UserError: no published family has this model.
    """
    leaves = {path: np.asarray(leaf) for path, leaf in named_leaves(subject.params).items()}
    kind = build.task_kind(subject.settings)
    text: Any = types.SimpleNamespace(specials=DEFAULT_SPECIALS)
    labels = Labels(tuple(f"label {i}" for i in range(LABELS)))
    sides = {side: labels if side in kind.labels else text for side in kind.sides}
    model = body_config(subject.task.model)
    task = subject.settings.task.name
    if isinstance(subject.task.model, DecoderOnly):
        task = "language_modeling"
    match = match_family(model, leaves, task, tokenizer_keys(Tokenizers(sides), model))
    published = (match.family, match.model, match.leaves)
    with tempfile.TemporaryDirectory() as folder:
        tensors = weights.to_tensors(*published)
        weights.save_tensors(tensors, Path(folder) / weights.WEIGHTS)
        read = weights.match_tensors(*published, weights.Tensors(Path(folder)))
        imported = {path: read.read(path, leaf.shape) for path, leaf in match.leaves.items()}
    return Comparison.of_trees(imported, dict(match.leaves), BITS)


def data(subject: Subject) -> Comparison:
    """A data set opens again with the same examples, and batches continue where they stopped.

    Applies if the set or the task is the user's; reads the data and trains its tokenizers.
    """
    own_fields = {field for field, _ in user_components(subject.settings)}
    settings = override(subject.settings, _LENGTHS)
    if not own_fields & {"data.name", "task.name"}:
        raise DoesNotApplyError("neither data.name nor task.name is a component of yours")
    reads_folder = any(
        source.reads is None or "data.dir" in source.reads
        for source in find_sets(settings.data.name)
    )
    # A set of the user's own may have a folder of its own.
    if "data.name" not in own_fields and settings.data.dir is None and reads_folder:
        raise DoesNotApplyError(f"data.name {settings.data.name} is read from data.dir; set it")
    first = open_split(settings.data, "train")
    again = open_split(settings.data, "train")
    indices = np.linspace(0, len(first) - 1, min(len(first), _EXAMPLES)).astype(int).tolist()
    examples = [_digest(first[i]) for i in indices]
    # Backwards, so that examples that depend on those read before differ.
    backwards = [_digest(again[i]) for i in indices[::-1]]
    opened = Comparison.of_places(
        np.stack(backwards[::-1]), np.stack(examples), lambda i: f"example {indices[i]}", BITS
    )
    if not opened.is_equal:
        return opened
    with tempfile.TemporaryDirectory() as folder:
        tokenizers = build_tokenizers(settings, Path(folder) / TOKENIZER, first)
        task = build.build_task(settings, build.vocab_sizes(tokenizers), tokenizers)
        return _continued_batches(settings, task)


def _continued_batches(settings: Settings, task: Task) -> Comparison:
    """Compares batches read in one go with batches whose iterator was restored in the middle."""

    def read(batches: TrainBatches, count: int) -> list[np.ndarray]:
        return [np.hstack([*next(batches).values()]) for _ in range(count)]

    whole, started, continued = (
        build.batches_of(settings, task, open_split(settings.data, "train"), rows=2)
        for _ in range(3)
    )
    with contextlib.closing(whole), contextlib.closing(started), contextlib.closing(continued):
        expected = read(whole, 2 * _BATCHES)
        restored = read(started, _BATCHES)
        # The state passes through JSON, as in a checkpoint.
        continued.set_state(json.loads(json.dumps(started.get_state())))
        restored += read(continued, _BATCHES)
    return Comparison.of_places(
        np.stack(restored),
        np.stack(expected),
        lambda i: f"batch {i}, restored before {_BATCHES}",
        BITS,
    )


def _digest(example: Mapping[str, Any]) -> np.ndarray:
    text = repr(sorted(example.items())).encode()
    return np.frombuffer(hashlib.sha256(text).digest(), np.uint8)

# SPDX-License-Identifier: Apache-2.0
"""The subject of verification: a config shrunk by rule, with drawn parameters and tokens.

The shrunk model keeps every choice of the config (components, placement of norms, biases, ties,
windows) and its divisibility; only sizes and lengths fall. Nothing is read: tokens are drawn.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import KeyPath
from ml_collections import ConfigDict

from transformer_jax.data.batches.packing import padded_batch
from transformer_jax.data.batches.pipeline import eval_batches
from transformer_jax.errors import UserError
from transformer_jax.lab.verification.float64 import in_float64
from transformer_jax.lab.verification.outcomes import Comparison
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.layer_pattern import PARAMETERS, pattern_text, read_pattern
from transformer_jax.nn.parameters import parameter_at
from transformer_jax.parallel.engines import Engine
from transformer_jax.parallel.first_state import create_state
from transformer_jax.parallel.sharding import ParallelConfig
from transformer_jax.runs import build
from transformer_jax.runs.config import override, read_settings
from transformer_jax.runs.settings import FIELDS, Settings
from transformer_jax.tasks.interface import Task
from transformer_jax.tasks.losses import batch_shapes
from transformer_jax.tasks.teachers import ModelTeacher
from transformer_jax.training.config import TrainConfig
from transformer_jax.training.state import TrainState

ROWS = 8
VOCAB = 64
LABELS = 3
FIRST_TOKEN = 4  # tokens before it are special
_SEGMENTS = 3  # examples packed into one row
_NOISE = 0.1
_LARGEST_OPTION = 8
ROW_LENGTHS = ("data.max_length", "data.max_source_length", "data.max_target_length")

_LIMITS = {
    "model.attention_window": 4,
    "model.key_size": 8,
    "model.value_size": 8,
    "model.vocab_multiple": 8,
    "data.max_length": 32,
    "data.max_source_length": 32,
    "data.max_target_length": 24,
    "optimizer.warmup_steps": 2,
    "optimizer.decay_steps": 8,
    "optimizer.cooldown_steps": 2,
    "lora.rank": 4,
}
"""Fields that a shrunk config limits to these values."""
_SET = {
    "train.accumulation_steps": 1,
    "train.rows_per_device": None,
    "train.scale_to_data": False,
    "train.remat": "none",
    "train.init_from": None,
    "model.scan_layers": False,
    "model.dtype": "float32",
    "model.activation_dtype": "float32",
    **{f"parallel.{field.name}": field.default for field in dataclasses.fields(ParallelConfig)},
}
"""Fields that oracles vary, or that say nothing about the model, and their values."""
_SET_UNLESS_GIVEN = {
    "train.num_steps": 8,
    "model.attention": "plain",
    "model.dropout_bits": "threefry",
    "task.mask_rate": 0.8,
    "model.dropout_rate": 0.0,
    "model.embedding_dropout_rate": None,
    "model.attention_dropout_rate": 0.0,
    "model.feed_forward_dropout_rate": 0.0,
}


def shrunk(config: Settings | ConfigDict, kept: Collection[str] = ()) -> Settings:
    """Shrinks a config: two periods of layers, small widths that divide, short rows.

    Args:
      kept: fields "section.field" that keep their values.
    """
    settings = read_settings(config)
    values = settings.values
    limits = _limits(values, kept)
    changes = {
        name: min(values[name], limit)
        for name, limit in limits.items()
        if values.get(name) is not None
    }
    if values["model.layers"] is not None and "model.layers" not in kept:
        changes["model.layers"] = pattern_text(_small_period(values["model.layers"], limits))
    unless_given = {name: x for name, x in _SET_UNLESS_GIVEN.items() if name not in kept}
    changes |= {name: x for name, x in (_SET | unless_given).items() if name in FIELDS}
    small = override(settings, changes)
    options = {
        name: min(value, _LARGEST_OPTION)
        for name, value in values.items()
        if name not in FIELDS and name not in kept and type(value) is int
    }
    try:
        return override(small, options)
    except UserError:  # the component refuses such options; they keep their values
        return small


def _limits(values: Mapping[str, Any], kept: Collection[str]) -> dict[str, int]:
    """The largest values of the fields of a shrunk config."""
    heads = min(values["model.num_heads"], 4)
    is_grouped = values["model.num_key_value_heads"] != values["model.num_heads"]
    width = min(values["model.d_model"], 8 * heads)
    limits = _LIMITS | {
        "model.num_heads": heads,
        "model.num_key_value_heads": heads // 2 or 1 if is_grouped else heads,
        "model.d_model": width,
        "model.d_ff": 2 * width,
    }
    period = 1
    if values["model.layers"] is not None:
        period = len(_small_period(values["model.layers"], limits))
    for name in ("num_layers", "num_encoder_layers", "num_decoder_layers"):
        limits[f"model.{name}"] = 2 * period
    limits = {name: limit for name, limit in limits.items() if name not in kept}
    if "model.max_length" not in kept:  # positions must reach the end of a row
        rows = [min(values[name], limits.get(name, values[name])) for name in ROW_LENGTHS]
        limits["model.max_length"] = max(64, *rows)
    return limits


def _small_period(text: str, limits: Mapping[str, int]) -> list[dict[str, Any]]:
    """The layers of a pattern with small sizes; of equal layers in a row one is left, unless layers
    name others by number."""
    layers: list[dict[str, Any]] = []
    pattern = read_pattern(text, TransformerConfig)
    are_numbered = any(PARAMETERS in layer for layer in pattern)
    for layer in pattern:
        small = dict(layer)
        for name, value in layer.items():
            limit = _LARGEST_OPTION if "." in name else limits.get(f"model.{name}")
            if type(value) is int and limit is not None:
                small[name] = min(value, limit)
        if are_numbered or not layers or layers[-1] != small:
            layers.append(small)
    return layers


@dataclasses.dataclass(frozen=True)
class Subject:
    """A small model with its task, a batch and a state, on one device.

    Attributes:
      settings: those of a config, shrunk.
      origin: the subject whose state it has; None: it has its own.
    """

    settings: Settings
    origin: "Subject | None" = None

    def but(self, **changes: Any) -> "Subject":
        """The subject with other fields, "section__field"=value, and the same state."""
        fields = {name.replace("__", "."): value for name, value in changes.items()}
        return Subject(override(self.settings, fields), self.origin or self)

    @functools.cached_property
    def with_dropout(self) -> "Subject":
        """The subject with dropout."""
        return self.but(model__dropout_rate=0.1, model__attention_dropout_rate=0.1)

    @functools.cached_property
    def task(self) -> Task:
        """The task with its model, and a teacher of the same sizes; it has no tokenizers."""
        teacher = None
        if self.settings.distillation:
            untaught = dataclasses.replace(self.settings, train=TrainConfig())
            teacher = ModelTeacher(build.build_task(untaught, self.vocab_sizes, None))
        return build.build_task(self.settings, self.vocab_sizes, None, teacher)

    @property
    def vocab_sizes(self) -> dict[str, int]:
        """The assumed vocabulary size of each side."""
        kind = build.task_kind(self.settings)
        return dict.fromkeys(kind.sides, VOCAB) | dict.fromkeys(kind.labels, LABELS)

    @functools.cached_property
    def engine(self) -> Engine:
        """The engine of one device."""
        alone = dataclasses.replace(self.settings, parallel=ParallelConfig(engine="jit"))
        return build.build_engine(alone, jax.devices()[:1])

    @functools.cached_property
    def rows(self) -> list[list[dict[str, np.ndarray]]]:
        """Drawn examples of the rows of the batch: each holds up to three, and later rows are
        fuller. Features with equally many slots have equally many tokens of each example."""
        rng = np.random.default_rng(0)
        lengths = self.task.lengths
        rows = []
        for row in range(ROWS):
            count = 1 + row % min(_SEGMENTS, *lengths.values())
            sizes = {}
            for length in sorted(set(lengths.values())):
                filled = max(count, 1 + row * (length - 1) // (ROWS - 1))
                cuts = np.sort(rng.choice(np.arange(1, filled), count - 1, replace=False))
                sizes[length] = np.diff([0, *cuts, filled])
            examples = []
            for i in range(count):
                example = {}
                for feature, length in lengths.items():
                    least = FIRST_TOKEN if feature in self.task.read else 0
                    vocab_size = self.vocab_sizes.get(feature, VOCAB)
                    example[feature] = rng.integers(least, vocab_size, sizes[length][i])
                examples.append(example)
            rows.append(examples)
        return rows

    @functools.cached_property
    def batch(self) -> dict[str, np.ndarray]:
        """The examples packed into rows, from nearly empty to full."""
        packed: list[dict[str, np.ndarray]] = []
        for examples in self.rows:
            lengths = self.task.lengths
            packed += eval_batches(examples, lambda example, _: example, lengths=lengths, rows=1)
        return {name: np.concatenate([row[name] for row in packed]) for name in packed[0]}

    @property
    def unpacked(self) -> dict[str, np.ndarray]:
        """The examples of the batch, one in a row each, in the same order."""
        return padded_batch(list(itertools.chain(*self.rows)), self.task.lengths)

    @functools.cached_property
    def state(self) -> TrainState:
        """The initial state on the host, with noise on every parameter that is no average.

        Otherwise a bias of 0 or a scale of 1 could hide what it computes.
        """
        if self.origin is not None:
            return self.origin.state
        _, _, init_state = build.build_training(self.settings, self.task, self.engine)
        abstract = build.abstract_state(self.settings, init_state, self.engine.mesh)
        state = create_state(init_state, self.settings.seed, abstract)
        rng = np.random.default_rng(0)

        def add_noise(path: KeyPath, leaf: Any) -> np.ndarray:
            parameter = parameter_at(jax.tree_util.keystr(path, simple=True, separator="/"))
            if parameter is not None and parameter.kind == "average":
                return np.asarray(leaf)
            noise = _NOISE * rng.normal(size=leaf.shape)
            return np.asarray(leaf) + noise.astype(leaf.dtype)

        noisy: TrainState = jax.device_get(
            state.with_params(jax.tree_util.tree_map_with_path(add_noise, state.params))
        )
        return noisy

    @property
    def params(self) -> Any:
        """The parameters of the model."""
        return self.state.model_params

    def loss(self, params: Any, key: jax.Array | None = None) -> jax.Array:
        """Loss of the batch; with a key, that of training."""
        batch: Any = self.batch
        return self.task.loss(params, batch, key, self.state.frozen)[0]

    @functools.cached_property
    def gradients(self) -> Any:
        """Loss sums and gradients of the first step on one device, without dropout."""
        return self.first_gradients(self.engine)

    @functools.cached_property
    def rounding(self) -> Comparison:
        """The difference of the gradients from those without any rounding below float64, nor
        gradient rules of functions' own."""
        exact = in_float64(self.loss, self.params, derive=jax.grad)
        return Comparison.of_trees(jax.jit(jax.grad(self.loss))(self.params), exact)

    @functools.cached_property
    def drawn_gradients(self) -> Any:
        """The same, with what the step draws."""
        return self.first_gradients(self.engine, draws=True)

    def first_gradients(self, engine: Engine, *, draws: bool = False) -> dict[str, Any]:
        """Loss sums and gradients of the first training step, traced and compiled again.

        The step is that of training, with the gradients in place of the new parameters; unless it
        `draws`, without dropout.
        """
        task: Any = self.task if draws else _WithoutKey(self.task)
        compute_update = build.build_update(self.settings, task, engine)

        def step(state: TrainState, batch: Any) -> Any:
            update = compute_update(state, batch)
            return state.replace(params=update.grads), update.sums

        state, sums = self.compile_step(engine, step)(self.state, [self.batch])
        return {"sums": sums, "gradients": state.params}

    def compile_step(
        self, engine: Engine, step: Callable[..., Any]
    ) -> Callable[[TrainState, Sequence[Any]], tuple[TrainState, Any]]:
        """Compiles a step for batches of the subject.

        Returns:
          A function (state, batches) -> (the state after them, the results of the last), on the
          host.
        """
        _, _, init_state = build.build_training(self.settings, self.task, engine)
        abstract = build.abstract_state(self.settings, init_state, engine.mesh)
        compiled = engine.compile(step, abstract, batch_shapes(self.task.lengths, ROWS))

        def run(state: TrainState, batches: Sequence[Any]) -> tuple[TrainState, Any]:
            shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
            placed = engine.from_portable(jax.device_put(state, shardings))
            for batch in batches:
                placed, sums = compiled(placed, batch)
            ran: tuple[TrainState, Any] = jax.device_get((engine.to_portable(placed), sums))
            return ran

        return run


class _WithoutKey:
    """A task whose loss draws nothing: what a component draws for a row may depend on how the rows
    are divided."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def loss(self, params: Any, batch: Any, rng: Any, frozen: Any) -> Any:
        """The loss of evaluation."""
        return self._task.loss(params, batch, None, frozen)

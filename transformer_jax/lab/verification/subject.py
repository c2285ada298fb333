# SPDX-License-Identifier: Apache-2.0
"""The subject of verification: a config shrunk by rule, with drawn parameters and tokens.

The shrunk model keeps every choice of the config (components, placement of norms, biases, ties,
windows) and its divisibility; only sizes and lengths fall. Nothing is read: tokens are drawn.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np
from jax.tree_util import KeyPath
from ml_collections import ConfigDict

from transformer_jax.errors import UserError
from transformer_jax.nn.config import TransformerConfig
from transformer_jax.nn.layer_pattern import pattern_text, read_pattern
from transformer_jax.nn.parameters import parameter_at
from transformer_jax.parallel.engines import Engine, create_state
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
_FIRST_TOKEN = 4  # tokens before it are special
_SEGMENTS = 3  # examples packed into one row
_NOISE = 0.1
_LARGEST_OPTION = 8
_LENGTHS = ("data.max_length", "data.max_source_length", "data.max_target_length")

_NO_DROPOUT = {
    "model.dropout_rate": 0.0,
    "model.embedding_dropout_rate": None,
    "model.attention_dropout_rate": 0.0,
    "model.feed_forward_dropout_rate": 0.0,
}
_DROPOUT = {"model.dropout_rate": 0.1, "model.attention_dropout_rate": 0.1}
_LIMITS = {
    "model.attention_window": 4,
    "model.key_size": 8,
    "model.value_size": 8,
    "model.max_length": 64,
    "model.vocab_multiple": 8,
    "data.max_length": 16,
    "data.max_source_length": 16,
    "data.max_target_length": 12,
    "optimizer.warmup_steps": 2,
    "optimizer.decay_steps": 8,
    "optimizer.cooldown_steps": 2,
    "lora.rank": 4,
}
"""Fields that a shrunk config limits to these values."""
_SET = {
    "train.num_steps": 8,
    "train.accumulation_steps": 1,
    "train.rows_per_device": None,
    "train.scale_to_data": False,
    "train.remat": "none",
    "train.init_from": None,
    "model.scan_layers": False,
    "model.attention": "plain",
    "model.dropout_bits": "threefry",
    "model.dtype": "float32",
    "model.activation_dtype": "float32",
    "task.mask_rate": 0.8,
    **_NO_DROPOUT,
    **{f"parallel.{field.name}": field.default for field in dataclasses.fields(ParallelConfig)},
}
"""Fields that oracles vary, or that say nothing about the model, and their values."""


def shrunk(config: Settings | ConfigDict, kept: Collection[str] = ()) -> Settings:
    """Shrinks a config: two periods of layers, small widths that divide, short rows.

    Args:
      kept: fields "section.field" that keep their values.
    """
    settings = read_settings(config)
    values = {**settings.values}
    changes = {
        name: min(values[name], limit)
        for name, limit in _LIMITS.items()
        if values.get(name) is not None and name not in kept
    }
    longest = max(value for name, value in (values | changes).items() if name in _LENGTHS)
    if "model.max_length" in changes:  # positions must reach the end of a row
        changes["model.max_length"] = min(values["model.max_length"], max(64, longest))
    changes |= {name: size for name, size in _sizes(values | changes).items() if name not in kept}
    changes |= {name: value for name, value in _SET.items() if name in FIELDS}
    small = override(settings, changes)
    options = {name: value for name, value in _options(values).items() if name not in kept}
    try:
        return override(small, options)
    except UserError:  # the component refuses such options; they keep their values
        return small


def _sizes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Heads, widths and layers of a shrunk model."""
    heads = values["model.num_heads"]
    groups = values["model.num_key_value_heads"]
    few = min(heads, 4)
    sizes: dict[str, Any] = {"model.num_heads": few}
    if groups is not None:
        sizes["model.num_key_value_heads"] = few if groups == heads else min(groups, few // 2 or 1)
    width = min(values["model.d_model"], 8 * few)
    sizes |= {"model.d_model": width, "model.d_ff": min(values["model.d_ff"], 2 * width)}
    period = 1
    if values["model.layers"] is not None:
        layers = _pattern(values["model.layers"], sizes)
        sizes["model.layers"] = pattern_text(layers)
        period = len(layers)
    for name in ("num_layers", "num_encoder_layers", "num_decoder_layers"):
        sizes[f"model.{name}"] = min(values[f"model.{name}"], 2 * period)
    return sizes


def _pattern(text: str, sizes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A pattern of layers with small sizes; of equal layers in a row one is left."""
    limits = {name.removeprefix("model."): limit for name, limit in _LIMITS.items()}
    limits |= {name.removeprefix("model."): size for name, size in sizes.items()}

    def limit(name: str, value: Any) -> Any:
        most = _LARGEST_OPTION if "." in name else limits.get(name)
        return min(value, most) if type(value) is int and most is not None else value

    layers = [
        {name: limit(name, value) for name, value in layer.items()}
        for layer in read_pattern(text, TransformerConfig)
    ]
    return [layer for layer, _ in itertools.groupby(layers)]


def _options(values: Mapping[str, Any]) -> dict[str, int]:
    """Small options of the components: integers are at most 8."""
    return {
        name: min(values[name], _LARGEST_OPTION)
        for name in values.keys() - FIELDS.keys()
        if type(values[name]) is int
    }


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
        return Subject(override(self.settings, _DROPOUT), self.origin or self)

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
    def batch(self) -> dict[str, np.ndarray]:
        """Packed rows of drawn tokens, from nearly empty to full."""
        return draw_batch(self.task, self.vocab_sizes)

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

    @functools.cached_property
    def gradients(self) -> Any:
        """Loss sums and gradients of the first step on one device."""
        return first_gradients(self, self.engine)


def first_gradients(subject: Subject, engine: Engine) -> dict[str, Any]:
    """Loss sums and gradients of the first training step, traced and compiled again.

    The step is that of training, with the gradients in place of the new parameters.
    """
    compute_update = build.build_update(subject.settings, subject.task, engine)

    def step(state: TrainState, batch: Any) -> Any:
        update = compute_update(state, batch)
        return state.replace(params=update.grads), update.sums

    state, sums = run_step(subject, engine, step)
    return {"sums": sums, "gradients": state.params}


def run_step(subject: Subject, engine: Engine, step: Callable[..., Any]) -> tuple[Any, Any]:
    """Runs a step once on the subject's state and batch; both results are on the host."""
    _, _, init_state = build.build_training(subject.settings, subject.task, engine)
    abstract = build.abstract_state(subject.settings, init_state, engine.mesh)
    compiled = engine.compile(step, abstract, batch_shapes(subject.task.lengths, ROWS))
    state = engine.from_portable(place(subject.state, abstract))
    state, sums = compiled(state, subject.batch)
    return jax.device_get((engine.to_portable(state), sums))


def place(state: TrainState, abstract: Any) -> Any:
    """Puts a state on the devices of an abstract one."""
    return jax.device_put(state, jax.tree.map(lambda leaf: leaf.sharding, abstract))


def draw_batch(task: Task, vocab_sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Draws packed rows: each holds up to three examples, and later rows are fuller.

    Features with equally many slots have equally many tokens of each example.
    """
    rng = np.random.default_rng(0)
    lengths = task.lengths
    most = min(_SEGMENTS, *lengths.values())
    plans = {
        length: [_segments(rng, length, row, most) for row in range(ROWS)]
        for length in sorted(set(lengths.values()))
    }
    batch = {}
    for feature, length in lengths.items():
        segments = np.stack([ids for ids, _ in plans[length]])
        first = _FIRST_TOKEN if feature in task.read else 0
        tokens = rng.integers(first, vocab_sizes.get(feature, VOCAB), segments.shape)
        batch[feature] = np.where(segments > 0, tokens, 0).astype(np.int32)
        batch[f"{feature}_segment_ids"] = segments
        batch[f"{feature}_positions"] = np.stack([places for _, places in plans[length]])
    return batch


def _segments(
    rng: np.random.Generator, length: int, row: int, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Segment ids and positions of one row, int32 [length] each; row 0 has the fewest tokens."""
    count = 1 + row % most
    filled = max(count, 1 + row * (length - 1) // (ROWS - 1))
    cuts = np.sort(rng.choice(np.arange(1, filled), count - 1, replace=False))
    sizes = np.diff([0, *cuts, filled])
    ids = np.pad(np.repeat(np.arange(1, count + 1), sizes), (0, length - filled))
    places = np.pad(np.concatenate([np.arange(size) for size in sizes]), (0, length - filled))
    return ids.astype(np.int32), places.astype(np.int32)


def padded(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The examples of a packed batch, one in a row each, in the same order."""
    features = [name for name in batch if f"{name}_segment_ids" in batch]
    examples = [
        (row, segment)
        for row in range(ROWS)
        for segment in range(1, max(batch[f"{f}_segment_ids"][row].max() for f in features) + 1)
    ]
    unpacked = {name: np.zeros((len(examples), x.shape[1]), x.dtype) for name, x in batch.items()}
    for index, (row, segment) in enumerate(examples):
        for feature in features:
            in_segment = batch[f"{feature}_segment_ids"][row] == segment
            length = in_segment.sum()
            for name in (feature, f"{feature}_positions"):
                unpacked[name][index, :length] = batch[name][row, in_segment]
            unpacked[f"{feature}_segment_ids"][index, :length] = 1
    return unpacked
